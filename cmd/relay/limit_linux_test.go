package main

import (
	"testing"

	"golang.org/x/sys/unix"
)

// limitFiles bounds the size of files that a process writes, in bytes.
func limitFiles(t *testing.T, pid int, bytes uint64) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_FSIZE, nil, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: min(bytes, old.Max), Max: old.Max}, nil); err != nil {
		t.Fatal(err)
	}
}
