// Package upstreams runs the upstreams of a config: a Manager has one driver for each (upstream),
// which has a source, an intake and a mirror.Store.
//
// The source brings what the upstream has (packages xds and file, or any that registers its Kind).
// The intake decides what is served of it (package intake). The driver owns the lock and the timer
// of the intake, and hands what changes to the disk.
//
// An upstream whose source fails serves what it gave: only the source itself removes a resource. No
// upstream touches the store of another.
//
// At the start of a relay the Manager tells when clients may be served: once all is known of the
// upstreams that their firstSync asks for. A function without a clock (start.decide) decides for
// whom clients wait; a loop (AwaitFirstSync) gives it what is known.
//
// The package must not know who reads the stores, nor how a source works.
package upstreams
