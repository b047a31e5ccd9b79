// Package adsclient keeps one ADS stream to one server alive: it connects, subscribes
// to a list of types, gives every response to a Handler, acknowledges it or rejects it with the
// Handler's error, and starts over when the stream ends. SotW and delta become the same Response.
//
// A server can have several addresses, of servers with the same content. A Client serves one
// stream at a time, and a stream to another address resumes: it deletes nothing.
//   - The next address follows on a stream that cannot be opened, is refused, or ends before it
//     has synced and stayed for a moment; also on a silent one (SyncTimeout, keepalive).
//   - A stream that ends later is opened again where it was, and elsewhere if that fails.
//   - A Client that is not at the first address probes those before its own, one at a time. The
//     stream moves to one that has answered and stayed for FailbackAfter.
//
// The pauses between rounds through the addresses grow until a stream has synced. All pauses are
// random within bounds: the clients of a server that goes away do not come back, or to the next
// one, at the same moment.
//
// Responses stay in the buffers in which gRPC received them, and a cursor yields their resources
// one by one: ten thousand resources cost a few allocations, and a large response is in memory
// once. One budget bounds the buffers of all Clients (inFlight).
//
// The package must not know what the resources are, or where they are kept.
package adsclient
