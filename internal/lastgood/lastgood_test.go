package lastgood

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestABadFileKeepsTheLastGoodValue: and the next good one replaces it.
func TestABadFileKeepsTheLastGoodValue(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	parses := 0
	parse := func() (string, error) {
		parses++
		text, err := os.ReadFile(path)
		if string(text) == "bad" {
			err = errors.New("bad")
		}
		return string(text), err
	}
	if _, err := Open(parse, path); err == nil {
		t.Error("a file that is not there has opened")
	}
	write("one")
	f, err := Open(parse, path)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		text, value string
		changed     bool
		fails       bool
	}{
		{"one", "one", false, false}, {"bad", "one", false, true}, {"bad", "one", false, true}, {"one", "one", false, false}, {"two", "two", true, false},
	} {
		write(step.text)
		changed, err := f.Read()
		if changed != step.changed || (err != nil) != step.fails || f.Get() != step.value {
			t.Errorf("%s: changed %t, error %v, value %s", step.text, changed, err, f.Get())
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if changed, err := f.Read(); changed || err == nil || f.Get() != "two" {
		t.Errorf("without the file: changed %t, error %v, value %s", changed, err, f.Get())
	}
	if parses != 4 {
		t.Errorf("%d parses: a file that is the same is not parsed again", parses)
	}
}
