//go:build !unix

package hub

import "time"

// descriptorLimit: the system has no such limit.
func descriptorLimit() int { return 1 << 30 }

// processorTime: this system does not say.
func processorTime() time.Duration { return 0 }
