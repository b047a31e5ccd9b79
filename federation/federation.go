package federation

import (
	"fmt"

	"meshrelay/mirror"
)

// The kinds that claim hosts.
var (
	ServiceEntry   = mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}
	VirtualService = mirror.Kind{Group: "networking.istio.io", Kind: "VirtualService"}
)

// RuleError is a mistake in a rule.
type RuleError struct {
	// Field is the path of the mistake: "kinds[2]", "namespaces.include[0]", "selector" or
	// "expression".
	Field string
	// Line and Column are the place within an expression, counted from 1; 0 when the
	// mistake has no place.
	Line, Column int
	Err          error
}

// Error returns the mistake with its place.
func (e *RuleError) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("%s:%d:%d: %v", e.Field, e.Line, e.Column, e.Err)
	}
	return e.Field + ": " + e.Err.Error()
}

// Unwrap returns the mistake without its place.
func (e *RuleError) Unwrap() error { return e.Err }
