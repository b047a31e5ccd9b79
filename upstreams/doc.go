// Package upstreams is where configs come from: the kinds of sources (other xDS
// servers, files), each of which keeps one mirror.Store filled, and the Manager that
// runs them and tells how they are.
//
// A source that fails keeps what it gave: only the source's own word that a resource
// is gone removes it. No source ever touches another's store.
//
// At the start of a relay the Manager tells when clients may be served: once all is known of the
// sources that their firstSync asks for. Who that is is decided by a function without a clock
// (start.decide), to which a loop (AwaitFirstSync) gives what is known.
//
// The package must not know who reads the stores.
package upstreams
