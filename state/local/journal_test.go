package local

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"meshrelay/state"
)

func opened(t *testing.T, dir string) *Store {
	t.Helper()
	s := New(dir, nil)
	if _, err := s.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func appendLines(t *testing.T, s *Store, lines ...string) {
	t.Helper()
	for _, l := range lines {
		if err := s.AppendJournal([]byte(l + "\n")); err != nil {
			t.Fatal(err)
		}
	}
}

func joined(lines [][]byte) string { return string(bytes.Join(lines, []byte("|"))) }

// TestJournalOutlivesAKill: what was appended is read, also after a line that was cut off, and what
// is no line of ours is left to the reader.
func TestJournalOutlivesAKill(t *testing.T) {
	dir := t.TempDir()
	s := opened(t, dir)
	appendLines(t, s, "a", "b")
	f, err := os.OpenFile(filepath.Join(dir, journalName), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"event":{"se`); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if got := joined(s.LoadJournal()); got != `a|b|{"event":{"se` {
		t.Errorf("%s", got)
	}
	appendLines(t, s, "c")
	if got := joined(s.LoadJournal()); got != `a|b|{"event":{"se|c` {
		t.Errorf("%s", got)
	}
}

// TestJournalIsBounded: there are two files, each a line longer than its bound at most.
func TestJournalIsBounded(t *testing.T) {
	dir := t.TempDir()
	s := opened(t, dir)
	line := bytes.Repeat([]byte("x"), 256<<10)
	for i := range 3 * maxJournal / len(line) {
		appendLines(t, s, fmt.Sprintf("%06d%s", i, line[6:]))
	}
	size := int64(0)
	for _, name := range []string{journalName, oldJournalName} {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil {
			size += info.Size()
		}
	}
	if most := int64(2*maxJournal + 2*len(line)); size > most || size < maxJournal {
		t.Errorf("%d bytes, want %d at most", size, most)
	}
	lines := s.LoadJournal()
	if last := fmt.Sprintf("%06d", 3*maxJournal/len(line)-1); len(lines) == 0 || string(lines[len(lines)-1][:6]) != last {
		t.Errorf("%d lines", len(lines))
	}
}

// TestAJournalThatIsUnusableStopsNobody: a directory in its place, a link, a file that somebody has
// filled, one that is too long.
func TestAJournalThatIsUnusableStopsNobody(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"link":      func(path string) error { return os.Symlink("/etc/passwd", path) },
		"nonsense":  func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte{0, 0xff}, 1<<20), 0o600) },
		"long": func(path string) error {
			return os.WriteFile(path, bytes.Repeat(append(bytes.Repeat([]byte("x"), 1023), '\n'), 4*maxJournal>>10), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := make(filepath.Join(dir, journalName)); err != nil {
				t.Fatal(err)
			}
			s := opened(t, dir)
			size := 0
			for _, l := range s.LoadJournal() {
				size += len(l)
			}
			if size > 2*maxJournal {
				t.Errorf("%d bytes were read", size)
			}
			if _, err := s.Apply("east", state.Batch{}); err != nil {
				t.Errorf("the state is not kept: %v", err)
			}
		})
	}
}

// TestAnAppendThatFailsLeavesTheFileAsItWas: on a full disk it would take up, again and again, what others
// free; and the lines would stand there several times.
func TestAnAppendThatFailsLeavesTheFileAsItWas(t *testing.T) {
	size := func(dir string) int64 {
		info, err := os.Stat(filepath.Join(dir, journalName))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	t.Run("no room", func(t *testing.T) {
		dir := t.TempDir()
		s := opened(t, dir)
		appendLines(t, s, "a")
		must(t, s.Close())
		if out, err := player(t, "fulljournal", dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		s = opened(t, dir)
		if n := size(dir); n != 2 {
			t.Errorf("%d bytes after a failure, want 2", n)
		}
		appendLines(t, s, "c")
		if got := joined(s.LoadJournal()); got != "a|c" {
			t.Errorf("%s", got)
		}
	})
	t.Run("the older file stays", func(t *testing.T) {
		dir := t.TempDir()
		s := opened(t, dir)
		if err := os.Mkdir(filepath.Join(dir, oldJournalName), 0o700); err != nil {
			t.Fatal(err)
		}
		line := append(bytes.Repeat([]byte("x"), maxJournal/4), '\n')
		failed := 0
		for range 20 {
			if s.AppendJournal(line) != nil {
				failed++
			}
		}
		if n := size(dir); failed == 0 || n > maxJournal {
			t.Errorf("%d bytes after %d failures, want %d at most", n, failed, maxJournal)
		}
	})
}
