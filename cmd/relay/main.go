// Command relay mirrors the resources of many istiods and serves the merged resources over MCP-over-xDS
// (Mesh Configuration Protocol). See "relay --help".
//
// The package has the commands: flags, arguments and exit codes. It must not know how a relay works (package
// relay) or how data is printed (cmd/relay/internal/cliview).
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"meshrelay/cmd/relay/internal/selection"
	"meshrelay/internal/errlist"
)

// version is set by the linker: -ldflags "-X main.version=v1.2.3".
var version string

func main() { os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr)) }

// execute runs a command line and returns the exit code.
func execute(args []string, stdout, stderr io.Writer) int {
	// Output, errors and logs contain text from servers, clients and files.
	out, errs := newScreen(stdout), newScreen(stderr)
	defer func() { _ = errors.Join(out.Close(), errs.Close()) }() // nobody is left to report an error to
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errs)
	err := root.Execute()
	exit, chosen := errors.AsType[*exitError](err)
	switch {
	case err == nil:
		return 0
	case chosen:
		return exit.code
	}
	printError(errs, err)
	return 1
}

// printError prints each part of an error on a line of its own.
func printError(w io.Writer, err error) {
	for _, e := range errlist.Split(err) {
		// This error has the text of kubectl's, for which scripts look.
		if notFound := (*selection.NotFoundError)(nil); errors.As(e, &notFound) {
			fmt.Fprintln(w, e)
			continue
		}
		fmt.Fprintf(w, "error: %v\n", e)
	}
}
