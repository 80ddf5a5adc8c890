//go:build race

package poll

const raceEnabled = true
