// Package mirror holds the resources that the relay mirrors: the Resource, the kinds, the
// in-memory Store of one source, and the Aggregate that merges many stores into one view.
//
//	source ──► Store ──┐
//	source ──► Store ──┼──► Aggregate ──► handlers
//	source ──► Store ──┘
//
// A source (package upstreams) puts resources into its Store. The Store marks their keys in the
// queue of the Aggregate, which merges the copies of each key and tells its handlers about changes
// of the merged view. Everything is level-triggered: the queue holds keys, not content. So it is
// bounded by the number of distinct keys, a handler that falls behind skips intermediate states,
// and a handler finds the merged view at least as new as its event.
//
// Readers share the results of Get, List and events, which are immutable.
//
// ConfigStore, ConfigStoreCache, Handler and Event are a contract: they have the shape of
// istiod's model package, so that code written for that can use a mirror.
//
// The package must not know where resources come from or who reads them: it does no I/O, and
// imports neither gRPC nor xDS.
package mirror
