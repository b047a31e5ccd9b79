// Package adsclient keeps one ADS stream to one server open: it connects, subscribes to a list of
// types, passes each response to a Handler, acknowledges it or rejects it with the Handler's error,
// and starts again when the stream ends. SotW and delta give the same Response.
//
// A server can have several addresses of servers with the same content. A Client has one stream at
// a time. A stream to another address resumes: it deletes nothing.
//   - The client tries the next address if a stream cannot be opened, is refused, is silent
//     (SyncTimeout, keepalive), or ends soon after it has synced, or before.
//   - A stream that ends later is opened again at the same address, then at others.
//   - A client that does not use the first address probes the addresses before its own, one at a
//     time. The stream moves to an address that has answered and stayed open for FailbackAfter.
//
// The pauses between rounds through the addresses grow until a stream has synced. All pauses are
// random within bounds: when a server goes away, its clients do not all come back, or move to the
// next one, at the same moment.
//
// Responses stay in the buffers in which gRPC received them, and a cursor yields their resources
// one by one: ten thousand resources cost a few allocations, and a large response is in memory
// once. One budget bounds the responses of all Clients (inFlight).
//
// The package knows neither the content of resources nor where they are kept.
package adsclient
