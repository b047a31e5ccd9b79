// Package records has what the source of an upstream says.
//
// Records are the resources of the source by scope and name, imported and rewritten by the rules. For
// each key they tell what is wanted now: a resource, that the source has it no more, that the rules leave
// it out, or that a scope has still to answer (wants.go). They keep the last good content of what is served
// without the source having it, until they are told to let it go.
//
// The package knows nothing of guards, freezes, staleness or operators. It has no I/O, no goroutine and no
// clock.
//
// Its files have an order, in which they call down, but for what a test lists:
//
//   - content.go, trace.go, offered.go: what is asked of the records
//   - records.go: the Records
//   - update.go: updates of the source
//   - import.go: what the rules make of a resource
//   - root.go: rules about other resources, and about root namespaces
//   - wants.go: what is wanted of a key
//   - adopt.go: records of a former source, or of the disk
//   - extension.go, addresses.go, discovery.go: what is made of a resource, and endpoints
//   - scope.go: scopes and their answers
//   - report.go: what users see
//   - marks.go, element.go, record.go, rules.go: what the files above are made of
package records
