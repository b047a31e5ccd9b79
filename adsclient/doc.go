// Package adsclient keeps one ADS stream to one server alive: it connects, subscribes
// to a list of types, hands every response to a Handler, acknowledges what the
// handler accepts, rejects the rest, and starts over when the stream ends.
// SotW and delta come out as the same Response.
//
// A server can have several addresses: several servers with the same content. One stream at a
// time is served, and the Handler keeps its content from one to the next: a switch resumes, and
// deletes nothing.
//   - A stream that cannot be opened, is refused, ends before every type was answered or within
//     moments after that, or brings nothing for SyncTimeout before, is followed by one to the
//     next address. So is a silent one: pings are not answered, or TCP does not get through.
//   - A stream that ends later is opened again where it was, and elsewhere if that fails.
//   - While the stream is not at the first address, those before its own are probed, one at a
//     time. The stream moves to one that has answered and stayed for FailbackAfter.
//
// Only a stream on which every type was answered ends the growth of the pauses between
// rounds through the addresses. All pauses are drawn at random within bounds: the clients
// of a server that goes away do not come back, or to the next one, at the same moment.
//
// Responses are not unmarshalled. They stay in the buffers in which gRPC received them, and a
// cursor hands out their resources one by one: a response of ten thousand resources costs a few
// allocations, and a large one is in memory once. One budget bounds the buffers of all Clients
// (inFlight).
//
// The package must not know what the resources are, or where they are kept.
package adsclient
