// Package intake decides which resources of an upstream are served.
//
// An Intake is the state machine of one upstream. It has no I/O, no goroutine and no clock. Its
// driver calls Step with one event at a time (an update of the source, an order, a tick) and with
// the time.
//
// It owns the records: the resources of the source by scope and name, imported and rewritten by the
// rules. What is served follows from the records and the time:
//
//   - a resource is served from the scope of the lowest rank that has it (scope.go),
//   - a deletion waits while a scope of its kind may still have the name (scope.go), and while the
//     guard holds it (guard.go, hold.go),
//   - a frozen or rolled-back upstream changes nothing (freeze.go),
//   - resources of a source that is out of contact for too long expire (staleness.go),
//   - services are imported again when their endpoints change (discovery.go), with their siblings (siblings.go),
//   - changes of what is served are written to disk (journal.go).
//
// After a change, reconcile makes what is served of the affected names follow the records. The
// source does not have to send anything again.
//
// The package depends neither on the kind of source nor on the readers of the store.
package intake
