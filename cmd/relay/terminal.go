package main

import (
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"meshrelay/cmd/relay/internal/cliview"
	"meshrelay/internal/visible"
)

// screen is the output of a command. Text from servers, clients and files can not steer the
// terminal through it; colors that cliview marks can.
type screen struct {
	*visible.Writer
	// terminal tells that a person looks on; colored that the terminal takes colors.
	terminal, colored bool
}

// newScreen returns a screen that writes to w. NO_COLOR and TERM=dumb leave colors out.
func newScreen(w io.Writer) screen {
	s := screen{terminal: isTerminal(w)}
	s.colored = s.terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	if s.colored {
		w = painter{w, strings.NewReplacer(cliview.Escapes()...)}
	}
	s.Writer = visible.NewWriter(w)
	return s
}

// painter replaces colors by what a terminal takes for them.
type painter struct {
	w      io.Writer
	colors *strings.Replacer
}

// Write implements io.Writer.
func (p painter) Write(b []byte) (int, error) {
	if _, err := p.colors.WriteString(p.w, string(b)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// isTerminal reports whether a writer is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// colored reports whether the output of a command takes colors.
func colored(cmd *cobra.Command) bool {
	s, ok := cmd.OutOrStdout().(screen)
	return ok && s.colored
}

// watched reports whether a person looks at the errors of a command, so that progress is of use.
func watched(cmd *cobra.Command) bool {
	s, ok := cmd.ErrOrStderr().(screen)
	return ok && s.terminal
}

// onTerminal reports whether a person looks at the output of a command, and no program reads it.
func onTerminal(cmd *cobra.Command) bool {
	s, ok := cmd.OutOrStdout().(screen)
	return ok && s.terminal
}
