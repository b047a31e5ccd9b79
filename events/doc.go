// Package events is the journal of a relay: what changed, who changed it and why, and how far the
// change has got.
//
// It owns the events, the rules for merging those that come too fast, and a bounded ring with the
// newest ones. A book is the core: it has no I/O, no goroutine and no clock. A Journal is a book
// for several goroutines; its Run appends merged events in time.
//
// The package knows neither the sources and readers of events, nor the format of a disk.
package events
