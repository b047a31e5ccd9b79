// Package federation decides what becomes of configs between clusters: what of a source
// is imported, how it is reshaped on the way in, whose copy of a key is served, and who
// claims the same host.
//
// It is pure functions over mirror.Resource, used by package upstreams on the way in and
// by the mirror.Aggregate on merging. The package must not know where resources come from,
// who reads them, or the config file: it is told rules and compiles them.
package federation
