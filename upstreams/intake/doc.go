// Package intake decides what is served of what an upstream has.
//
// An Intake is the state machine of one upstream. It has no I/O, no goroutine and no clock: its
// driver steps it over events (what the source has told, what an operator orders, time that has
// passed), one at a time, and tells it what time it is.
//
// It owns the records: what the source has, by scope and name, as the rules import and rewrite
// it. Everything else is a rule over the records and the time:
//
//   - a resource is served from the scope of the lowest rank that has it (scope.go),
//   - a deletion waits while a scope of its kind may still have the name (scope.go), and while the
//     guard holds it (guard.go, hold.go),
//   - an upstream that is frozen or rolled back changes nothing (freeze.go),
//   - what is out of contact for too long is not served (staleness.go),
//   - services are imported again when their endpoints change (discovery.go),
//   - changes of what is served go to disk (journal.go).
//
// Whatever changes, reconcile brings what is served of some names to what the rules make of the
// records. Nobody asks the source to tell anything again for that.
//
// The package must not know where a source has its resources from, nor who reads what is served.
package intake
