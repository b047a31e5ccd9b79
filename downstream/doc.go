// Package downstream is the xDS server: it serves immutable encoded snapshots of the merged view over ADS, in
// the protocols state of the world (SotW) and delta.
//
// Each resource is an item of the type of its kind. Each view has a collection (package snapshot) for each type.
// Each client has a Set (package subscription) with its subscriptions and a cursor for each type. A goroutine of
// the stream sends the difference between the cursor and the newest snapshot. There is no queue: a slow client
// skips the snapshots in between, and takes no memory for them.
//
// Clients may see less than the merged view. A View selects copies of resources. Copies from a client's own
// cluster, and copies for other control plane revisions, are left out. The remaining copies are merged, so
// that another upstream's copy replaces one that is left out. Such a derived view shares each page of the
// merged view that has the same content.
//
// When the rules change (Reload), a view is changed, or forked if its clients must now see different things.
// Both keep the history of the view, so that each client gets only the difference.
//
// Limits protect the clients from one another. A client over a limit gets a gRPC status that names the limit.
// No other client is affected.
//
// The package must not know where resources come from: it reads them through the interface Resources, and
// Push names the changed keys.
package downstream
