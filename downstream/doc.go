// Package downstream is the xDS endpoint: an ADS server for MCP-over-xDS, in state
// of the world (SotW) and delta form, over immutable encoded snapshots of the merged
// view.
//
// The merged view is kept, for each kind, as a collection: a sequence of snapshots
// of which only the newest is held. A snapshot is a sorted list of pages; a change
// makes a new snapshot that shares all pages but one with the one before, and adds
// to a bounded log.
//
// Clients may see less than the merged view: a View chooses copies, and what came from a
// client's own cluster or is meant for other revisions is left out. What remains is merged
// by itself, so that another source's copy takes the place of one that is left out. Such
// a derived view has the pages of the merged view wherever they are the same, and its own
// where they differ. Revisions are given out once for all views of a kind.
//
// When the rules change (Reload), a client's view becomes another one, or forks into several:
// with all that it remembers, so that the change of rules is to the client a change of
// content like any other.
//
// A client is a cursor. For each type it subscribes to, a watch remembers the
// revision of the snapshot that the client was brought to. When the client's
// transport can take more, its goroutine works out the difference between that and
// the newest snapshot and sends it. There is no queue: a client that reads slowly
// skips the states in between, and costs nothing but its socket.
//
// SotW and delta share all of this. They differ in the last step: a SotW response is
// the snapshot's encoded pages, a delta response the encoded entries that differ;
// both go to gRPC as lists of shared buffers behind a small header.
//
// Limits protect the clients from one another. Whoever is over one is told so by a gRPC
// status, is counted by reason, and is the only one who notices.
//
// The package must not know where configs come from: it reads them through the
// Configs interface and is told by Push what may have changed.
package downstream
