package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// printedCommand matches a command that events and pages offer: a literal, and perhaps a name after it.
var printedCommand = regexp.MustCompile("Command: \"(relay [a-z][^\"]*)\"( \\+)?")

// TestCommandsThatAreOfferedCanBeRun: events and the page offer commands to copy.
func TestCommandsThatAreOfferedCanBeRun(t *testing.T) {
	n := 0
	for _, dir := range []string{"upstreams", "admin", "events"} {
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
				if err := parses(strings.TrimPrefix(line, "relay ")); err != nil {
					t.Errorf("%s offers %q: %v", path, line, err)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n < 10 {
		t.Errorf("%d commands found: the pattern no longer fits", n)
	}
}

// shownCommand is a command in a block of a document, without its comment.
var shownCommand = regexp.MustCompile(`(?m)^ {4,}(?:bin/)?relay ([a-z][^#>|\n]*)`)

// TestCommandsInTheDocumentsCanBeRun: the parser accepts all commands in README, docs and examples.
func TestCommandsInTheDocumentsCanBeRun(t *testing.T) {
	n := 0
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../../docs/runbooks/*.md", "../../examples/*/*.md", "../../deploy/*.md"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range shownCommand.FindAllStringSubmatch(string(text), -1) {
				n++
				if err := parses(m[1]); err != nil {
					t.Errorf("%s shows %q: %v", path, m[1], err)
				}
			}
		}
	}
	if n < 40 {
		t.Errorf("%d commands found: the pattern no longer fits", n)
	}
}

// inlineCommand is a command in backquotes.
var inlineCommand = regexp.MustCompile("`relay ([a-z][^`]*)`")

// TestCommandsInRunbooksAndAlertsCanBeRun: also those in the text, where a command may be named without arguments. In
// alerts, the name of an upstream is a template.
func TestCommandsInRunbooksAndAlertsCanBeRun(t *testing.T) {
	paths, err := filepath.Glob("../../docs/runbooks/*.md")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, path := range append(paths, "../../deploy/prometheus/alerts.yaml") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		named := regexp.MustCompile(`\{\{ \$labels\.\w+ \}\}`).ReplaceAllString(string(text), "east")
		for _, m := range append(inlineCommand.FindAllStringSubmatch(named, -1), regexp.MustCompile(`runbook: "relay ([^"]+)"`).FindAllStringSubmatch(named, -1)...) {
			n++
			words := strings.Fields(m[1])
			if cmd, _, err := newRoot().Find(words); len(words) == 1 && err == nil && cmd.HasParent() {
				continue // the name of a command
			}
			if err := parses(strings.Join(words, " ")); err != nil {
				t.Errorf("%s shows %q: %v", path, m[1], err)
			}
		}
	}
	if n < 80 {
		t.Errorf("%d commands found: the pattern no longer fits", n)
	}
}

// TestCommandsInTheTextOfDocumentsCanBeRun: those in backquotes, where NAME and the like stand for what a user fills in,
// and a command may be named without its arguments.
func TestCommandsInTheTextOfDocumentsCanBeRun(t *testing.T) {
	n := 0
	for path, page := range markdown(t) {
		if path == "docs/cli.md" || path == "CHANGELOG.md" || strings.HasPrefix(path, "docs/adr/") {
			continue // made of the commands; of its time
		}
		for _, m := range inlineCommand.FindAllStringSubmatch(page, -1) {
			n++
			words := strings.Fields(strings.NewReplacer("\\|", "|", "…", "x").Replace(m[1]))
			cmd, rest, err := newRoot().Find(words)
			named := err == nil && cmd.HasParent() && !slices.ContainsFunc(rest, func(word string) bool {
				return cmd.Flags().Lookup(strings.TrimLeft(word, "-")) == nil // it names a flag
			})
			if err := parses(strings.Join(words, " ")); err != nil && !named {
				t.Errorf("%s names %q: %v", path, m[1], err)
			}
		}
	}
	if n < 200 {
		t.Errorf("%d commands found: the pattern no longer fits", n)
	}
}

// shownExample is a command among the examples of a command.
var shownExample = regexp.MustCompile(`(?m)^  relay ([a-z][^#>|\n]*)`)

// TestExamplesOfCommandsCanBeRun: those that "--help" shows.
func TestExamplesOfCommandsCanBeRun(t *testing.T) {
	n := 0
	var look func(*cobra.Command)
	look = func(cmd *cobra.Command) {
		for _, m := range shownExample.FindAllStringSubmatch(strings.ReplaceAll(cmd.Example, "\\\n", ""), -1) {
			n++
			if err := parses(m[1]); err != nil {
				t.Errorf("%s shows %q: %v", cmd.CommandPath(), m[1], err)
			}
		}
		for _, c := range cmd.Commands() {
			look(c)
		}
	}
	look(newRoot())
	if n < 60 {
		t.Errorf("%d examples found: the pattern no longer fits", n)
	}
}

// quoted is an argument with spaces.
var quoted = regexp.MustCompile(`"[^"]*"`)

// parses returns an error if the flags or the number of arguments of a command line are wrong.
func parses(line string) error {
	cmd, args, err := newRoot().Find(strings.Fields(quoted.ReplaceAllString(line, "text")))
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(args); err != nil {
		return err
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}
