//go:build race

package main

// raceDetector says that the race detector slows this program and its servers down.
const raceDetector = true
