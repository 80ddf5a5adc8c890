//go:build !linux

package loadtest

import "hub/loadtest/report"

func describeMachine(*report.Environment) {}

func loadAverage() *float64 { return nil }
