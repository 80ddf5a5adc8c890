package poll_test

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"
)

// TestMain fails when goroutines are left after all tests.
func TestMain(m *testing.M) {
	if run := os.Getenv("POLL_TEST_CHILD"); run != "" {
		os.Exit(child())
	}
	before := runtime.NumGoroutine()
	code := m.Run()
	if code == 0 {
		for end := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before; runtime.Gosched() {
			if time.Now().After(end) {
				buf := make([]byte, 1<<20)
				fmt.Fprintf(os.Stderr, "goroutines left:\n%s", buf[:runtime.Stack(buf, true)])
				os.Exit(1)
			}
		}
	}
	os.Exit(code)
}
