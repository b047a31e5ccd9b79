// Package mirror holds the configuration that the relay mirrors: what a
// resource is, which kinds there are, the in-memory store that keeps one
// source's resources, and the Aggregate that merges many stores into one view.
//
// Data flows one way. A source (package upstreams) puts resources into its own
// Store; the Store tells its handlers; the Aggregate, which is such a handler,
// works out what that means for the merged view and tells its own handlers.
//
//	source ──► Store ──┐
//	source ──► Store ──┼──► Aggregate ──► handlers
//	source ──► Store ──┘
//
// Events are level-triggered: what is queued is the key of a resource, not its
// content, so the queue is bounded by the number of distinct keys, a reader that
// falls behind skips intermediate states, and when a handler runs the store is
// at least as new as the event it is given.
//
// A Resource is immutable from the moment it is built. Whatever Get, List or an
// event hands out is shared by every reader of the process and must not be
// changed.
//
// The package must not know where resources come from or who reads them: it
// does no I/O, and imports neither gRPC nor xDS.
package mirror
