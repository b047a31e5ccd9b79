package memory

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// forgetProgram takes the pages of the program file out of the resident set. They stay in the system's
// page cache, and are mapped again as they are used (madvise(2), MADV_DONTNEED). Most of them only a
// start needs, or nobody: the system maps 16 pages for each page that is used.
func forgetProgram() error {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	maps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return err
	}
	defer maps.Close()
	all, err := asInFile(maps, program)
	if err != nil {
		return err
	}
	for _, m := range all {
		if _, _, failed := unix.Syscall(unix.SYS_MADVISE, m.from, m.to-m.from, unix.MADV_DONTNEED); failed != 0 {
			return fmt.Errorf("madvise: %w", failed)
		}
	}
	return nil
}

// mapping is a range of addresses.
type mapping struct{ from, to uintptr }

// asInFile returns the mappings of a file whose pages are those of the file, and stay so. Other pages are
// lost if they are given back: those that can be written, and those that were before they were made
// read-only, which is where a loader puts addresses (RELRO). smaps is as in proc_pid_smaps(5).
func asInFile(smaps io.Reader, file string) (all []mapping, err error) {
	var of mapping
	candidate := false
	lines := bufio.NewScanner(smaps)
	for lines.Scan() {
		var access string
		line, next := lines.Text(), mapping{}
		if _, err := fmt.Sscanf(line, "%x-%x %s", &next.from, &next.to, &access); err == nil {
			of, candidate = next, strings.HasSuffix(line, " "+file) && (access == "r-xp" || access == "r--p")
			continue
		}
		name, value, _ := strings.Cut(line, ":")
		switch own := strings.TrimSpace(value) != "0 kB"; {
		case !candidate:
		case name == "Anonymous" && own:
			candidate = false
		case name == "Swap": // after Anonymous
			if candidate = false; !own {
				all = append(all, of)
			}
		}
	}
	return all, lines.Err()
}
