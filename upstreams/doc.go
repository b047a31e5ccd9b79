// Package upstreams is where configs come from: the kinds of sources (other xDS
// servers, files), each of which keeps one mirror.Store filled, and the Manager that
// runs them and tells how they are.
//
// A source that fails keeps what it gave: only the source's own word that a resource
// is gone removes it. No source ever touches another's store.
//
// The package must not know who reads the stores.
package upstreams
