package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"meshrelay/cmd/relay/internal/cliview"
	"meshrelay/internal/visible"
)

// screen is the output of a command. It makes control characters in texts of servers, clients and files
// harmless. Colors that cliview marks stay.
type screen struct {
	*visible.Writer
	// terminal is set when the output is a terminal, and colored when it also shows colors.
	terminal, colored bool
}

// newScreen returns a screen that writes to w. NO_COLOR and TERM=dumb turn colors off.
func newScreen(w io.Writer) screen {
	s := screen{terminal: isTerminal(w)}
	s.colored = s.terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	if s.colored {
		w = painter{w, strings.NewReplacer(cliview.Escapes()...)}
	}
	s.Writer = visible.NewWriter(w)
	return s
}

// painter replaces the color marks of cliview by escape sequences.
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

// colored reports whether the output of a command shows colors.
func colored(cmd *cobra.Command) bool {
	s, ok := cmd.OutOrStdout().(screen)
	return ok && s.colored
}

// onTerminal reports whether the output or the error output of a command is a terminal. A command prints progress only
// if its error output is one.
func onTerminal(w io.Writer) bool {
	s, ok := w.(screen)
	return ok && s.terminal
}

// interruptible returns a context that ends with SIGINT or SIGTERM.
func interruptible(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
}
