// Package adsclient keeps one ADS stream to one server alive: it connects, subscribes
// to a list of types, hands every response to a Handler, acknowledges what the
// handler accepts and rejects what it does not, and starts over when the stream ends.
// SotW and delta come out as the same Response.
//
// A server can have several addresses, which are several servers with the same content.
// One stream at a time is served, and the Handler keeps what it has from one to the next:
// a switch resumes, and deletes nothing.
//   - A stream that cannot be opened, is refused, ends before every type was answered, or
//     makes no progress towards that, is followed by one to the next address. So is one
//     that is silent: pings are not answered, or what was sent is not acknowledged.
//   - A stream that ends later is opened again where it was, and elsewhere if that fails.
//     One that does so time and again within moments counts as a failure.
//   - While the stream is not at the first address, those before its own are probed, and
//     it moves back to one that has worked for a while. That while doubles each time the
//     stream does not stay.
//
// Only a stream on which every type was answered ends the growth of the pauses between
// rounds through the addresses. All pauses are drawn at random within bounds: the clients
// of a server that goes away do not come back, or to the next one, at the same moment.
//
// Responses are not unmarshalled. The codec checks the framing of a message and
// leaves its elements as they came, as slices of one pooled buffer, so that a
// response of ten thousand resources costs a few allocations.
//
// The package must not know what the resources are, or where they are kept.
package adsclient
