// Package intake decides which resources of an upstream are served.
//
// An Intake is the state machine of one upstream. It has no I/O, no goroutine and no clock. Its
// driver calls Step with one event at a time (an update of the source, an order, a tick) and with
// the time.
//
// It holds two halves together, which do not know each other:
//
//   - records are what the source says, imported by the rules. They tell for each key what is wanted,
//   - the gate is what is served. It follows, holds, freezes and expires.
//
// After a change, obey has the gate do what the records want of each key that was touched (serve.go). The
// source does not have to send anything again. Changes of what is served are written to disk (journal.go).
//
// The package depends neither on the kind of source nor on the readers of the store.
package intake
