package memory

import (
	"bufio"
	"fmt"
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
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return err
	}
	defer maps.Close()
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		var from, to uintptr
		var access string
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x %s", &from, &to, &access); err != nil {
			return fmt.Errorf("/proc/self/maps, %q: %w", lines.Text(), err)
		}
		// Pages that can be written may differ from the file, and are lost if they are given back.
		if !strings.HasSuffix(lines.Text(), " "+program) || access != "r-xp" && access != "r--p" {
			continue
		}
		if _, _, failed := unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED); failed != 0 {
			return fmt.Errorf("madvise: %w", failed)
		}
	}
	return lines.Err()
}
