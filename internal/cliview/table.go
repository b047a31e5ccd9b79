package cliview

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/duration"
)

const (
	gap  = "   " // between columns
	none = "-"   // an empty cell
)

// table aligns rows. Its columns only grow, so that later rows line up with earlier ones.
type table struct {
	widths []int
	rows   [][]string // not written yet
}

// titled returns a table with titles.
func titled(titles ...string) *table { return &table{rows: [][]string{titles}} }

// add adds a row. Empty cells become none.
func (t *table) add(cells ...any) {
	row := make([]string, len(cells))
	for i, cell := range cells {
		row[i] = cmp.Or(fmt.Sprint(cell), none)
	}
	t.rows = append(t.rows, row)
}

// flush cleans and writes the rows that were added since the last call.
func (t *table) flush(w io.Writer) error {
	rows := t.rows
	t.rows = nil
	for _, row := range rows {
		for i, cell := range row {
			row[i] = Clean(cell)
			if i == len(t.widths) {
				t.widths = append(t.widths, 0)
			}
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	for _, row := range rows {
		last := len(row) - 1
		for i, cell := range row[:last] {
			row[i] = cell + strings.Repeat(" ", t.widths[i]-utf8.RuneCountInString(cell)) + gap
		}
		if _, err := fmt.Fprintln(w, strings.Join(row, "")); err != nil {
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

// page is a text under construction: sentences and tables.
type page struct{ strings.Builder }

func (p *page) printf(format string, args ...any) { fmt.Fprintf(p, format, args...) }

func (p *page) table(t *table) {
	_ = t.flush(p) //nolint:errcheck // a Builder takes everything
}

// Ago returns the age of t as Age does, none when t is zero.
func Ago(t, now time.Time) string {
	if t.IsZero() {
		return none
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

// Bytes returns a size: "812 B", "1.4 MiB".
func Bytes(n int64) string {
	const units = "KMGT"
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	size, unit := float64(n)/(1<<10), 0
	for ; size >= 1<<10 && unit < len(units)-1; unit++ {
		size /= 1 << 10
	}
	return fmt.Sprintf("%.1f %ciB", size, units[unit])
}
