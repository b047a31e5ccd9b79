package cliview

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"meshrelay/admin/view"
)

const (
	gap  = "   " // between columns
	none = "-"   // an empty cell
)

// table aligns rows. Its columns only grow wider, so that later rows align with earlier ones.
type table struct {
	widths []int
	rows   [][]view.Cell // rows that flush has yet to write
}

// titled returns a table with a first row of titles.
func titled(titles ...any) *table {
	t := &table{}
	t.add(titles...)
	return t
}

// tableOf returns a table with a row for each element of all.
func tableOf[T any](columns view.Columns[T], all []T, now time.Time) *table {
	t := &table{}
	var titles []any
	for _, c := range columns {
		titles = append(titles, strings.ToUpper(c.Title))
	}
	t.add(titles...)
	for _, v := range all {
		row := columns.Row(v, now)
		for i, c := range row {
			switch {
			case !c.Time.IsZero():
				row[i].Text = view.Ago(c.Time, now)
			case !c.Until.IsZero():
				row[i].Text = "in " + view.Age(max(c.Until.Sub(now), 0))
			}
		}
		t.rows = append(t.rows, row)
	}
	return t
}

// listed returns a table with a row for each element of all, or empty if there are none.
func listed[T any](empty string, columns view.Columns[T], all []T, now time.Time) string {
	if len(all) == 0 {
		return empty
	}
	return tableOf(columns, all, now).String()
}

// add adds a row.
func (t *table) add(cells ...any) {
	row := make([]view.Cell, len(cells))
	for i, cell := range cells {
		row[i].Text = fmt.Sprint(cell)
	}
	t.rows = append(t.rows, row)
}

// flush writes the rows that were added since the last call.
func (t *table) flush(w io.Writer) error {
	rows := t.rows
	t.rows = nil
	for _, row := range rows {
		for i := range row {
			row[i].Text = Clean(cmp.Or(row[i].Text, none))
			if i == len(t.widths) {
				t.widths = append(t.widths, 0)
			}
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(row[i].Text))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			line.WriteString(Colored(cell.Level, cell.Text))
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", t.widths[i]-utf8.RuneCountInString(cell.Text)) + gap)
			}
		}
		if _, err := fmt.Fprintln(w, line.String()); err != nil {
			return err
		}
	}
	return nil
}

func (t *table) String() string {
	var p page
	p.table(t)
	return p.String()
}

// page builds a text of sentences and tables.
type page struct{ strings.Builder }

// printf writes a formatted text. It cleans the arguments.
func (p *page) printf(format string, args ...any) {
	for i, arg := range args {
		switch arg := arg.(type) {
		case string:
			args[i] = Clean(arg)
		case fmt.Stringer:
			args[i] = Clean(arg.String())
		}
	}
	fmt.Fprintf(p, format, args...)
}

func (p *page) table(t *table) {
	_ = t.flush(p) // a Builder returns no error
}

// part writes a text after another, unless the text is empty.
func (p *page) part(before, text string) {
	if text != "" {
		p.WriteString(before + text)
	}
}
