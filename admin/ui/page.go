package ui

import (
	"strconv"
	"time"

	"meshrelay/admin/view"
	"meshrelay/internal/text"
)

// Page is the content of one page. A level is shown as a color and a symbol, never only as a color. Hrefs are relative to the
// path of the pages.
type Page struct {
	Title  string
	Crumbs []Link
	// Lead is the summary in one sentence.
	Lead State
	// Command prints the same in a terminal.
	Command  string
	Sections []Section
	// Topics are the topics of the page: when one changes, browsers load the page again.
	Topics []string
}

// Link is a link to another page.
type Link struct{ Text, Href string }

// State is a text with a Level.
type State struct {
	Level view.Level
	Text  string
	Href  string
}

// Section is a part of a page. Any of its fields may be empty.
type Section struct {
	ID, Title string
	Text      []State
	Facts     []Fact
	Graph     *Graph
	Search    *Search
	Table     *Table
	// Code is preformatted text, such as YAML or a difference.
	Code    string
	Actions []Action
}

// Fact is a name with a value.
type Fact struct {
	Name string
	Cell
}

// Table is a table with a bounded number of rows.
type Table struct {
	// Caption describes the table for screen readers.
	Caption string
	Head    []string
	Rows    [][]Cell
	// Empty is shown when there are no rows.
	Empty string
	// Summary has the number of all rows. Next is the address of the next rows.
	Summary string
	Next    string
}

// Cell is one value, and the page that it links to.
type Cell struct {
	view.Cell
	Href string
}

// Search is a form that loads this page with other parameters.
type Search struct {
	Href   string
	Fields []Field
}

// Field is one parameter of a form: a text, or a choice of Options.
type Field struct {
	Name, Label, Value, Hint string
	Options                  []string
}

// Action is something that an operator can do, with a command.
type Action struct{ Title, Why, Command string }

const (
	// maxRows is the most rows of a table.
	maxRows = 100
	// maxCell bounds a value, and maxCode a preformatted text, in bytes.
	maxCell = 400
	maxCode = 32 << 10
)

func say(level view.Level, words string) State { return State{Level: level, Text: cut(words)} }

func cell(words string) Cell { return leveled("", words) }

func linked(words, href string) Cell {
	c := cell(words)
	c.Href = href
	return c
}

func leveled(level view.Level, words string) Cell {
	return Cell{Cell: view.Cell{Text: cut(words), Level: level}}
}

func number[N int | uint64](n N) Cell {
	return Cell{Cell: view.Cell{Text: grouped(strconv.FormatUint(uint64(n), 10)), Number: true}}
}

func at(t time.Time) Cell { return Cell{Cell: view.Cell{Time: t}} }

// headOf returns the titles of columns.
func headOf[T any](columns view.Columns[T]) (titles []string) {
	for _, c := range columns {
		titles = append(titles, c.Title)
	}
	return titles
}

// rowOf returns the row of v. Its first cell links to href.
func rowOf[T any](columns view.Columns[T], v T, now time.Time, href string) []Cell {
	row := make([]Cell, len(columns))
	for i, c := range columns.Row(v, now) {
		if c.Text = cut(c.Text); c.Number {
			c.Text = grouped(c.Text)
		}
		row[i].Cell = c
	}
	row[0].Href = href
	return row
}

// tableOf returns a table with a row for each of the first n elements of a list. The first cell of a row links to
// the href of its element.
func tableOf[T any](caption, empty string, columns view.Columns[T], all []T, n int, now time.Time, href func(T) string) *Table {
	t := &Table{Caption: caption, Empty: empty, Head: headOf(columns)}
	for _, v := range first(all, n) {
		t.Rows = append(t.Rows, rowOf(columns, v, now, href(v)))
	}
	return t
}

// first returns at most the first n elements of a list.
func first[T any](all []T, n int) []T { return all[:min(len(all), n)] }

// paged adds to a table the rows of the matching elements, from the offset of the request on. It returns how many
// elements match.
func paged[T any](t *Table, r *request, all []T, matches func(T) bool, row func(T) []Cell) (n int) {
	for _, v := range all {
		if !matches(v) {
			continue
		}
		if n++; n > r.offset() && len(t.Rows) < maxRows {
			t.Rows = append(t.Rows, row(v))
		}
	}
	if n > r.offset()+maxRows {
		t.Next = r.with("from", strconv.Itoa(r.offset()+maxRows))
	}
	return n
}

// cut shortens a text to maxCell bytes.
func cut(words string) string { return text.Shorten(words, maxCell) }

// grouped returns a number with a thin space between groups of three digits.
func grouped(digits string) string {
	if len(digits) <= 4 {
		return digits
	}
	return grouped(digits[:len(digits)-3]) + "\u2009" + digits[len(digits)-3:]
}
