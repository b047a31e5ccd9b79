package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// printedCommand is a command that events and pages offer: a literal, and perhaps a name after it.
var printedCommand = regexp.MustCompile("Command: \"(relay [a-z][^\"]*)\"( \\+)?")

// TestCommandsThatAreOfferedCanBeRun: events, notifications and the page offer commands to copy.
func TestCommandsThatAreOfferedCanBeRun(t *testing.T) {
	n := 0
	for _, dir := range []string{"upstreams", "admin", "events", "notify"} {
		err := filepath.WalkDir(filepath.Join("..", "..", dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range printedCommand.FindAllStringSubmatch(string(text), -1) {
				n++
				line := m[1]
				if m[2] != "" {
					line += "east"
				}
				root := newRoot()
				cmd, args, err := root.Find(strings.Fields(line)[1:])
				if err == nil {
					err = cmd.ParseFlags(args)
				}
				if err == nil {
					err = cmd.ValidateArgs(cmd.Flags().Args())
				}
				if err != nil {
					t.Errorf("%s offers %q: %v", path, line, err)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n < 20 {
		t.Errorf("%d commands found: the pattern no longer fits", n)
	}
}
