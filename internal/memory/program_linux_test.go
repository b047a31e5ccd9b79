package memory

import (
	"fmt"
	"os"
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
