package memory

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// residentProgram returns how many kB of files are in the resident set.
func residentProgram(t *testing.T) (kB int) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "RssFile:")
	if _, err := fmt.Sscanf(rest, "%d kB", &kB); err != nil {
		t.Fatal(err)
	}
	return kB
}

// TestPagesThatOnlyTheStartNeededAreGivenBack: the pages of the program file leave the resident set,
// and the program goes on.
func TestPagesThatOnlyTheStartNeededAreGivenBack(t *testing.T) {
	before := residentProgram(t)
	if err := forgetProgram(); err != nil {
		t.Fatal(err)
	}
	if after := residentProgram(t); after >= before {
		t.Errorf("%d kB of files are resident, %d kB before", after, before)
	}
}

// TestPagesThatDifferFromTheFileAreNotGivenBack: a loader writes addresses to pages, and then makes them
// read-only.
func TestPagesThatDifferFromTheFileAreNotGivenBack(t *testing.T) {
	const file = "/usr/bin/the relay"
	lines := ""
	for i, m := range []struct{ access, path, anonymous, swap string }{
		{"r--p", file, "0", "0"},
		{"r-xp", file, "0", "0"},
		{"r--p", file, "24", "0"},
		{"r--p", file, "0", "8"}, // it is in the swap
		{"rw-p", file, "0", "0"},
		{"r--p", "/lib/libc.so", "0", "0"},
		{"rw-p", "", "512", "0"},
		{"r--p", file, "0", "0"},
	} {
		lines += fmt.Sprintf("%x000-%x000 %s 00001000 fe:00 12345   %s\nSize:   4 kB\nRss:   4 kB\nAnonymous:    %s kB\nAnonHugePages:    0 kB\nSwap:    %s kB\nSwapPss:   0 kB\nVmFlags: rd mr\n",
			i+1, i+2, m.access, m.path, m.anonymous, m.swap)
	}
	all, err := asInFile(strings.NewReader(lines), file)
	if want := []mapping{{0x1000, 0x2000}, {0x2000, 0x3000}, {0x8000, 0x9000}}; err != nil || !slices.Equal(all, want) {
		t.Errorf("%x, %v, want %x", all, err, want)
	}
}
