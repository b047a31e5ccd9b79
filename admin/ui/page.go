package ui

import (
	"strconv"
	"time"

	"meshrelay/internal/cliview"
	"meshrelay/internal/text"
)

// Level tells how well something is: a word for a colour and a symbol, which never stand alone.
type Level string

// The levels.
const (
	OK   Level = "ok"
	Warn Level = "warn" // needs a look
	Bad  Level = "bad"
	None Level = "none" // neither good nor bad
)

// Symbol returns a character for those who do not see colours.
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

// Page is all that one page shows. Hrefs are below the path of the pages.
type Page struct {
	Title  string
	Crumbs []Link
	// Lead is the answer in one sentence.
	Lead State
	// Command prints the same in a terminal.
	Command  string
	Sections []Section
	// Topics are what the page shows: when one changes, a browser gets the page anew.
	Topics []string
}

// Link leads to another page.
type Link struct{ Text, Href string }

// State is a text with a Level.
type State struct {
	Level Level
	Text  string
	Href  string
}

// Section is a part of a page: any of its fields may be empty.
type Section struct {
	ID, Title string
	Text      []State
	Facts     []Fact
	Graph     *Graph
	Charts    []Chart
	Lanes     *Lanes
	Search    *Search
	Table     *Table
	// Code is YAML or a difference, as it is.
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
	// Caption tells what it lists, for those who hear it.
	Caption string
	Head    []string
	Rows    [][]Cell
	// Empty stands in the place of no rows.
	Empty string
	// Summary tells how many rows there are in all. Next leads to the rows after these.
	Summary string
	Next    string
}

// Cell is one value.
type Cell struct {
	Text  string
	Level Level
	Href  string
	// Time is shown as an age, Until as what is left.
	Time, Until time.Time
	Number      bool
}

// Search is a form that leads to this page with other parameters.
type Search struct {
	Href   string
	Fields []Field
}

// Field is one parameter of a form: text, or one of some options.
type Field struct {
	Name, Label, Value, Hint string
	Options                  []string
}

// Action is something that a person can do: a command, and in "relay ui" a form.
type Action struct {
	Title, Why, Command string
	Form                *Form
}

// Form is an order of "relay ui": its parameters, and what has to be typed to confirm it.
type Form struct {
	// Path is where it is sent to, below the path of the pages.
	Path    string
	Hidden  []Field
	Fields  []Field
	Confirm string
	Danger  bool
	// Area is the name of a text of many lines; empty for none.
	Area string
}

const (
	// maxRows bounds the rows of a table.
	maxRows = 100
	// maxCell bounds a value, in bytes, and maxCode a text of many lines.
	maxCell = 400
	maxCode = 32 << 10
)

func say(level Level, words string) State { return State{Level: level, Text: cut(words)} }

func cell(words string) Cell { return Cell{Text: cut(words)} }

func linked(words, href string) Cell { return Cell{Text: cut(words), Href: href} }

func leveled(level Level, words string) Cell { return Cell{Text: cut(words), Level: level} }

func number[N int | uint64](n N) Cell {
	return Cell{Text: grouped(strconv.FormatUint(uint64(n), 10)), Number: true}
}

func at(t time.Time) Cell { return Cell{Time: t} }

// cut bounds a text from outside.
func cut(words string) string { return text.Shorten(words, maxCell) }

// grouped writes a number with a thin gap between groups of three digits.
func grouped(digits string) string {
	if len(digits) <= 4 {
		return digits
	}
	return grouped(digits[:len(digits)-3]) + "\u2009" + digits[len(digits)-3:]
}

// goodIf returns OK, or otherwise a level.
func goodIf(ok bool, otherwise Level) Level {
	if ok {
		return OK
	}
	return otherwise
}

// Bounded returns the first maxCode bytes of a text, and tells what is missing.
func Bounded(words, command string) string {
	if len(words) <= maxCode {
		return words
	}
	return text.Shorten(words, maxCode) + "\n… it is longer than a page shows; all of it: " + command + "\n"
}

// count returns a number of things in words.
func count(n int, thing string) string { return cliview.Count(n, thing) }
