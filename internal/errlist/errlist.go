// Package errlist splits joined errors into their parts.
package errlist

import (
	"strings"

	"github.com/hashicorp/go-multierror"
)

// Lines returns the parts of err as texts, each in one line.
func Lines(err error) (lines []string) {
	for _, e := range Split(err) {
		lines = append(lines, strings.Join(strings.Fields(e.Error()), " "))
	}
	return lines
}

// Split returns the parts of an error from errors.Join or multierror, at any depth. Any other error
// is its own only part.
func Split(err error) (all []error) {
	var parts []error
	switch e := err.(type) { //nolint:errorlint // a wrapped list belongs to the text around it
	case nil:
		return nil
	case *multierror.Error:
		parts = e.Errors
	case interface{ Unwrap() []error }:
		parts = e.Unwrap()
	default:
		return []error{err}
	}
	for _, p := range parts {
		all = append(all, Split(p)...)
	}
	return all
}
