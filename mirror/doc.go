// Package mirror holds the resources that the relay mirrors: what a resource is, which kinds
// there are, the in-memory Store of one source, and the Aggregate that merges many stores into
// one view.
//
// Data flows one way. A source (package upstreams) puts resources into its Store. The Store
// marks their keys in the queue of the Aggregate, which merges the copies of each key and
// tells its handlers about changes of the merged view.
//
//	source ──► Store ──┐
//	source ──► Store ──┼──► Aggregate ──► handlers
//	source ──► Store ──┘
//
// Everything is level-triggered: the queue holds keys, not content. So it is bounded by the
// number of distinct keys, a handler that falls behind skips intermediate states, and a
// handler finds the merged view at least as new as its event.
//
// A Resource is immutable from the moment it is built. Every reader of the process shares the
// results of Get, List and events, and must not change them.
//
// ConfigStore, ConfigStoreCache, Handler and Event are a contract: they have the shape of
// istiod's model package, so that code written for that can use a mirror. A Store is a
// ConfigStore, with writes that expect a version; an Aggregate is a read-only
// ConfigStoreCache. The relay itself writes with Store.Put and Store.Remove.
//
// The package must not know where resources come from or who reads them: it does no I/O, and
// imports neither gRPC nor xDS.
package mirror
