package auth_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"
)

// TestMain fails when goroutines are left.
func TestMain(m *testing.M) {
	flag.Parse()
	fuzzing := flag.Lookup("test.fuzz").Value.String() != "" // it leaves goroutines of its own
	code := m.Run()
	for deadline := time.Now().Add(5 * time.Second); code == 0 && !fuzzing && runtime.NumGoroutine() > 1; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<20)
			fmt.Fprintf(os.Stderr, "leaked goroutines:\n%s\n", buf[:runtime.Stack(buf, true)])
			code = 1
		}
	}
	os.Exit(code)
}
