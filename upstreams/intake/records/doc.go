// Package records has what the source of an upstream says.
//
// Records are the resources of the source by scope and name, imported and rewritten by the rules. For
// each key they tell what is wanted now: a resource, that the source has it no more, that the rules leave
// it out, or that a scope has still to answer (wants.go). They keep the last good content of what is served
// without the source having it, until they are told to let it go.
//
// The package knows nothing of guards, freezes, staleness or operators. It has no I/O, no goroutine and no
// clock.
package records
