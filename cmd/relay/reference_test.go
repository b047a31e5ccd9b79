package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

var update = flag.Bool("update", false, "write docs/cli.md anew")

const commandReference = "../../docs/cli.md"

// TestTheCommandReferenceIsThatOfTheCommands: docs/cli.md has the help of each command. With -update, as in "make
// docs", the test writes the page.
func TestTheCommandReferenceIsThatOfTheCommands(t *testing.T) {
	for _, name := range []string{"RELAY_ADMIN", "RELAY_SERVER", "RELAY_SOCKET", "RELAY_CONFIG"} {
		t.Setenv(name, "") // these set defaults of flags
	}
	page := referenceOf(newRoot())
	if *update {
		if err := os.WriteFile(commandReference, []byte(page), 0o644); err != nil { // a document
			t.Fatal(err)
		}
		return
	}
	written, err := os.ReadFile(commandReference)
	if err != nil {
		t.Fatal(err)
	}
	if string(written) != page {
		t.Error("docs/cli.md differs from the help of the commands: run \"make docs\"")
	}
	for _, name := range []string{"RELAY_ADMIN", "RELAY_SERVER", "RELAY_SOCKET", "RELAY_CONFIG"} {
		if !strings.Contains(page, "`"+name+"`") {
			t.Errorf("docs/cli.md does not explain %s", name)
		}
	}
}

// TestCommandsAreFew: a command more needs one less. Those of cobra, help and completion, do not count.
func TestCommandsAreFew(t *testing.T) {
	const most = 36
	var paths []string
	var count func(*cobra.Command)
	count = func(c *cobra.Command) {
		if c.Runnable() {
			paths = append(paths, c.CommandPath())
		}
		for _, below := range c.Commands() {
			if below.Name() != "help" && below.Name() != "completion" {
				count(below)
			}
		}
	}
	count(newRoot())
	if len(paths) > most {
		t.Errorf("%d commands, at most %d: %s", len(paths), most, strings.Join(paths, ", "))
	}
}

// referenceOf returns the command reference as Markdown: an index by group, and a section for each command.
func referenceOf(root *cobra.Command) string {
	var p strings.Builder
	p.WriteString(`<!-- Generated from the commands by "make docs". -->
# Command reference

This page has the text of ` + "`relay COMMAND --help`" + `. [The documentation index](README.md#commands) groups the
commands by question. [HTTP](http.md) lists the endpoints that they use.

| variable | meaning |
| --- | --- |
| ` + "`RELAY_ADMIN`" + ` | default of ` + "`--admin`" + ` |
| ` + "`RELAY_SERVER`" + ` | default of ` + "`--server`" + ` |
| ` + "`RELAY_SOCKET`" + ` | default of ` + "`--socket`" + ` |
| ` + "`RELAY_CONFIG`" + ` | default of ` + "`-c`" + `, in commands for which that flag has a default |
| ` + "`NO_COLOR`" + ` | any value: no colors on a terminal |

Exit codes: 0 is success, 1 an error, which is printed to stderr. Some commands use 1, 2 or 3 for an answer; their
sections name it. All commands have ` + "`-h`" + ` and the flags that follow, unless they ask no running relay.

` + "```\n" + strings.TrimRight(root.PersistentFlags().FlagUsages(), "\n") + "\n```" + `

` + "`relay completion bash`" + ` (also ` + "`zsh`, `fish`, `powershell`" + `) prints a completion script.
`)
	var commands []*cobra.Command
	for _, g := range root.Groups() {
		fmt.Fprintf(&p, "\n## %s\n\n| command | |\n| --- | --- |\n", strings.TrimSuffix(g.Title, ":"))
		for _, c := range root.Commands() {
			if c.GroupID == g.ID {
				commands = appendTree(&p, commands, c)
			}
		}
	}
	p.WriteString("\n## Other commands\n\n| command | |\n| --- | --- |\n")
	for _, c := range root.Commands() {
		switch {
		case c.GroupID != "":
		case c.Name() == "help":
			for _, topic := range c.Commands() {
				if !topic.Hidden {
					commands = appendTree(&p, commands, topic)
				}
			}
		default:
			commands = appendTree(&p, commands, c)
		}
	}
	for _, c := range commands {
		writeCommand(&p, c)
	}
	return p.String()
}

// appendTree writes a line of the index for a command and for each command below it, and appends them to all.
func appendTree(p *strings.Builder, all []*cobra.Command, c *cobra.Command) []*cobra.Command {
	path := c.CommandPath()
	fmt.Fprintf(p, "| [%s](#%s) | %s |\n", path, strings.ReplaceAll(path, " ", "-"), c.Short)
	all = append(all, c)
	for _, below := range c.Commands() {
		if !below.Hidden {
			all = appendTree(p, all, below)
		}
	}
	return all
}

func writeCommand(p *strings.Builder, c *cobra.Command) {
	text := c.Long
	if text == "" {
		text = c.Short + "."
	}
	fmt.Fprintf(p, "\n### %s\n\n", c.CommandPath())
	fence := func(text string) { fmt.Fprintf(p, "```\n%s\n```\n", strings.TrimRight(text, " \n")) }
	fence(text)
	fmt.Fprintf(p, "\nUsage: `%s`\n", c.UseLine())
	if c.Example != "" {
		p.WriteString("\nExamples:\n\n")
		fence(strings.TrimPrefix(strings.ReplaceAll("\n"+c.Example, "\n  ", "\n"), "\n"))
	}
	if c.HasAvailableLocalFlags() {
		p.WriteString("\nFlags:\n\n")
		fence(c.LocalFlags().FlagUsages())
	}
}
