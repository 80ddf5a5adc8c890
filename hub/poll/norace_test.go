//go:build !race

package poll

const raceEnabled = false
