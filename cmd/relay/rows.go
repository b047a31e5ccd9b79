package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"meshrelay/admin/view"
)

// usualRows is how many rows a table has at most, unless asked for more: what fits into 100 KB.
const usualRows = 400

// rowLimit is the flag --limit of a command that prints a table. Other formats are for programs, and
// whole.
type rowLimit struct {
	most, left int
}

func (l *rowLimit) flag(cmd *cobra.Command) {
	cmd.Flags().IntVar(&l.most, "limit", usualRows, "print at most this `number` of rows of a table; 0 prints all of it, and all differences; -o json is whole")
}

// cut returns the rows that are printed.
func cut[T any](l *rowLimit, all []T) []T {
	if l.most <= 0 || len(all) <= l.most {
		return all
	}
	l.left += len(all) - l.most
	return all[:l.most]
}

// diffs returns which differences are printed, if they are wanted: all with all rows.
func (l *rowLimit) diffs(wanted bool) view.Diffs {
	switch {
	case !wanted:
		return view.NoDiffs
	case l.most <= 0:
		return view.AllDiffs
	}
	return view.SomeDiffs
}

// note tells what was left out of a table.
func (l *rowLimit) note(cmd *cobra.Command, o output) error {
	if l.left == 0 || o.format != o.formats[0] {
		return nil
	}
	_, err := fmt.Fprintf(cmd.ErrOrStderr(), "left out: %s; --limit 0 prints all, and -o json is whole\n", view.Count(l.left, "more row"))
	return err
}

// rows prints v, or text with a limited number of rows and a note of what was left out.
func (o *output) rows(cmd *cobra.Command, l *rowLimit, err error, v any, text string) error {
	if err := o.print(cmd, err, v, text); err != nil {
		return err
	}
	return l.note(cmd, *o)
}
