// Package view defines what both the terminal and the web page show: columns of tables, states, and sentences about
// upstreams, clusters, clients, resources and orders.
//
// Its texts may contain input of servers and clients. The caller must escape control characters.
//
// The package must not know how a terminal or a page formats a table.
package view

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

// Level is how good or bad a state is.
type Level string

// The levels.
const (
	OK   Level = "ok"
	Warn Level = "warn" // an operator should look at it
	Bad  Level = "bad"
	None Level = "none" // neither good nor bad
)

// OKIf returns OK if ok is true, and otherwise the level otherwise.
func OKIf(ok bool, otherwise Level) Level {
	if ok {
		return OK
	}
	return otherwise
}

// Cell is one value of a table.
type Cell struct {
	Text  string
	Level Level
	// Time is shown as an age, Until as the time that is left. Text is then empty.
	Time, Until time.Time
	// Number is set when Text is a number.
	Number bool
}

// Column is a column of a table with a row for each T. The time argument of Cell is the current time.
type Column[T any] struct {
	Title string
	Cell  func(T, time.Time) Cell
}

// Columns are the columns of a table.
type Columns[T any] []Column[T]

// Pick returns the columns with these titles, in this order. It panics if a title does not exist.
func (c Columns[T]) Pick(titles ...string) (picked Columns[T]) {
	for _, title := range titles {
		i := slices.IndexFunc(c, func(column Column[T]) bool { return column.Title == title })
		picked = append(picked, c[i])
	}
	return picked
}

// Row returns the cells of one row.
func (c Columns[T]) Row(v T, now time.Time) []Cell {
	row := make([]Cell, len(c))
	for i, column := range c {
		row[i] = column.Cell(v, now)
	}
	return row
}

func text[T any](title string, of func(T) string) Column[T] {
	return timed(title, func(v T, _ time.Time) string { return of(v) })
}

func timed[T any](title string, of func(T, time.Time) string) Column[T] {
	return Column[T]{title, func(v T, now time.Time) Cell { return Cell{Text: of(v, now)} }}
}

func number[T any, N int | uint64](title string, of func(T) N) Column[T] {
	return Column[T]{title, func(v T, _ time.Time) Cell { return Cell{Text: fmt.Sprint(of(v)), Number: true} }}
}

func age[T any](title string, of func(T) time.Time) Column[T] {
	return Column[T]{title, func(v T, _ time.Time) Cell { return Cell{Time: of(v)} }}
}

func level[T any](title string, of func(T, time.Time) (string, Level)) Column[T] {
	return Column[T]{title, func(v T, now time.Time) Cell {
		text, level := of(v, now)
		return Cell{Text: text, Level: level}
	}}
}

// Ago returns the age of t as Age does, and "-" for the zero time.
func Ago(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return Age(max(now.Sub(t), 0))
}

// Age returns a duration as kubectl prints it: 42s, 5m10s, 3h, 12d, 2y30d.
func Age(d time.Duration) string { return duration.HumanDuration(d) }

// Count returns a number of things: "1 resource", "2 resources". The plural of thing ends in s.
func Count(n int, thing string) string {
	return strconv.Itoa(n) + " " + thing + Agree(n, "", "s")
}

// Agree returns one or many, as the number n demands.
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

// OneLine joins the lines of a text, and collapses white space.
func OneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// YesNo returns "yes" or "no".
func YesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// ClockTime parses a time in UTC: a time of day, which is the last such time before now, or a date with or
// without a time. It returns the zero time for an empty text.
func ClockTime(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	now = now.UTC()
	for _, layout := range []string{"15:04", "15:04:05"} {
		if t, err := time.Parse(layout, text); err == nil {
			at := time.Date(now.Year(), now.Month(), now.Day(), t.Hour(), t.Minute(), t.Second(), 0, time.UTC)
			if at.After(now) {
				at = at.AddDate(0, 0, -1)
			}
			return at, nil
		}
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02"} {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("%.32q: want a time in UTC, such as 03:12 or 2026-11-22T03:12:00Z", text)
}

// Symbol returns a character that shows the level without colors.
func (l Level) Symbol() string {
	switch l {
	case OK:
		return "●"
	case Warn:
		return "▲"
	case Bad:
		return "✘"
	}
	return "○"
}
