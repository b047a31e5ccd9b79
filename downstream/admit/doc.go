// Package admit decides what clients may take: connections, streams, requests a second and the bytes of requests
// that gRPC holds, for the process, for a listener, and for a peer, which is a proven identity or else an address.
//
// It counts in scopes: all clients, those of a listener, those without a proven identity, and one peer. A scope may
// take a part of each limit, so that nobody takes the places of all others. Streams of a connection, windows, sizes of
// messages and headers are gRPC's work. The package must not know what the streams carry.
package admit
