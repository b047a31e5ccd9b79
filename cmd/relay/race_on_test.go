//go:build race

package main

// raceDetector reports whether the race detector is linked in. It needs memory.
const raceDetector = true
