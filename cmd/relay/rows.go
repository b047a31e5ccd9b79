package main

import (
	"fmt"
	"math"

	"github.com/spf13/cobra"

	"meshrelay/admin/view"
)

// usualRows is the default of --limit: a table of about 100 KB.
const usualRows = 400

// usualDiffs bounds differences, in bytes. With the table before them, the output on a terminal stays below 100 KB.
const usualDiffs = 60_000

// rowLimit is the flag --limit of a command that prints a table. It does not apply to other formats, which are
// for programs.
type rowLimit struct {
	most, left int
}

func (l *rowLimit) flag(cmd *cobra.Command) {
	cmd.Flags().IntVar(&l.most, "limit", usualRows, "print at most this `number` of rows of a table; 0 prints all rows and differences; -o json always prints all")
}

// cut returns the rows to print, and counts the rest in l.left.
func cut[T any](l *rowLimit, all []T) []T {
	if l.most <= 0 || len(all) <= l.most {
		return all
	}
	l.left += len(all) - l.most
	return all[:l.most]
}

// diffs returns how many bytes of differences to print, if they are wanted: all of them only with --limit 0.
func (l *rowLimit) diffs(wanted bool) int {
	switch {
	case !wanted:
		return 0
	case l.most <= 0:
		return math.MaxInt
	}
	return usualDiffs
}

// rows prints v, or text, like print. Then it notes how many rows were left out of a table.
func (o *output) rows(cmd *cobra.Command, l *rowLimit, err error, v any, text string) error {
	if err := o.print(cmd, err, v, text); err != nil || l.left == 0 || o.format != o.formats[0] {
		return err
	}
	_, err = fmt.Fprintf(cmd.ErrOrStderr(), "left out: %s; --limit 0 prints all, and so does -o json\n", view.Count(l.left, "more row"))
	return err
}
