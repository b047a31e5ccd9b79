// Package events is the journal of a relay: what changed, by whom, why, and how far it got.
//
// It owns the events, which of them are put together when many come at once, and a bounded ring
// that keeps the newest. A book is the core: no I/O, no goroutine, no clock. A Journal is a book
// that any goroutine may use; its Run ends the batches that nothing follows.
//
// The package must not know where events come from, who reads them, nor how a disk keeps them.
package events
