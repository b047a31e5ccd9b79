//go:build race

package main

// raceDetector tells that the race detector is linked in, which takes memory of its own.
const raceDetector = true
