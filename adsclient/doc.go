// Package adsclient keeps one ADS stream to one server alive: it connects, subscribes
// to a list of types, hands every response to a Handler, acknowledges what the
// handler accepts and rejects what it does not, and starts over when the stream ends.
// SotW and delta come out as the same Response.
//
// Responses are not unmarshalled. The codec checks the framing of a message and
// leaves its elements as they came, as slices of one pooled buffer, so that a
// response of ten thousand resources costs a few allocations.
//
// The package must not know what the resources are, or where they are kept.
package adsclient
