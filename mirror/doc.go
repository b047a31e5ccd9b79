// Package mirror holds the resources that the relay mirrors: the Resource, the kinds, the
// in-memory Store of one source, and the Aggregate that merges many stores into one view.
//
//	source ──► Store ──┐
//	source ──► Store ──┼──► Aggregate ──► handlers
//	source ──► Store ──┘
//
// A source (package upstreams) puts resources into its Store. The Store marks their keys in the
// queue of the Aggregate. The Aggregate merges the copies of each key and calls its handlers. The queue
// holds keys, not content: it is never longer than the number of keys, a slow handler skips
// intermediate states, and a handler finds the merged view at least as new as its Change.
//
// After a panic while a key is merged, the Aggregate merges all that the sources have anew, and tells the handlers what has come
// of it. Handlers must not panic over a resource: nobody catches that.
//
// Resources are immutable: readers share the results of Get and List.
//
// The package must not know where resources come from or who reads them: it does no I/O, and
// imports neither gRPC nor xDS.
package mirror
