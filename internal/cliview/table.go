package cliview

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/duration"
)

// gap separates columns.
const gap = "   "

// table aligns rows. Its columns only grow, so that later rows line up with earlier ones.
type table struct{ widths []int }

// write cleans and prints rows.
func (t *table) write(w io.Writer, rows [][]string) error {
	for _, row := range rows {
		for i, cell := range row {
			cell = Clean(cell)
			row[i] = cell
			if i == len(t.widths) {
				t.widths = append(t.widths, 0)
			}
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			line.WriteString(cell)
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", t.widths[i]-utf8.RuneCountInString(cell)) + gap)
			}
		}
		if _, err := fmt.Fprintln(w, line.String()); err != nil {
			return err
		}
	}
	return nil
}

// page is a text under construction: sentences and tables.
type page struct{ strings.Builder }

func (p *page) printf(format string, args ...any) { fmt.Fprintf(p, format, args...) }

// rows adds an aligned table. The first row is usually the header.
func (p *page) rows(rows [][]string) {
	_ = new(table).write(p, rows) //nolint:errcheck // a Builder takes everything
}

// None is an empty cell.
const None = "-"

// OrNone returns s, or None when it is empty.
func OrNone(s string) string {
	if s == "" {
		return None
	}
	return s
}

// Ago returns the age of t as Age does, None when t is zero.
func Ago(t, now time.Time) string {
	if t.IsZero() {
		return None
	}
	return Age(max(now.Sub(t), 0))
}

// Age returns a time span as kubectl prints it: 42s, 5m10s, 3h, 12d, 2y30d.
func Age(d time.Duration) string { return duration.HumanDuration(d) }

// Count returns a number of things: "1 resource", "2 resources". The plural of thing ends in s.
func Count(n int, thing string) string {
	return strconv.Itoa(n) + " " + thing + Agree(n, "", "s")
}

// Agree returns the form of a word that goes with a number.
func Agree(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
