//go:build !linux

package loadtest

import (
	"os"
	"os/exec"
	"time"
)

// What this system does not tell, or is not asked for: figures that need it are
// absent from the report.

func isolate(*exec.Cmd) {}

// ownProgram names the file that runs now.
func ownProgram() (string, error) { return os.Executable() }

func processCPU(int) (time.Duration, bool) { return 0, false }

func ownCPU() (time.Duration, bool) { return 0, false }

func processMemory(int, string) (int64, bool) { return 0, false }

func processDescriptors(int) (int, bool) { return 0, false }

func socketMemory() (int64, bool) { return 0, false }

func descriptorLimit() (int64, bool) { return 0, false }

func fileSystem(string) (name string, inMemory bool) { return "", false }

// manyLoopbacks is false where only 127.0.0.1 is this machine's by itself.
const manyLoopbacks = false

// terminate asks a process to end well.
var terminate = os.Interrupt

// hangup asks it to reload its configuration; nil where there is no such signal.
var hangup os.Signal
