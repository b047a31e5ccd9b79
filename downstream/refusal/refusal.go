// Package refusal has the error for a refused client: a reason for the metric, and the gRPC status for the
// client. It must not know how limits are counted.
package refusal

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meshrelay/internal/text"
)

// Reason is the limit or rule that refuses a client or a connection.
type Reason string

// The reasons.
const (
	Connections Reason = "connections" // MaxConnections
	Streams     Reason = "streams"     // MaxStreams
	Peer        Reason = "peer"        // a part of MaxConnections or MaxStreams
	Rate        Reason = "rate"        // NewStreamsPerSecond
	Overload    Reason = "overload"    // Deps.Overloaded
	Requests    Reason = "requests"    // RequestsPerSecond
	Bytes       Reason = "bytes"       // MaxRequestBytes
	Receiving   Reason = "receiving"   // too many large requests, or one that takes too long while others wait
	Node        Reason = "node"        // MaxNodeBytes, no node, or one that claims another identity
	Types       Reason = "types"       // MaxTypesPerClient, or a wrong type URL
	Names       Reason = "names"       // MaxNamesPerClient and the like, or a wrong name
	Versions    Reason = "versions"    // MaxVersionBytes
	View        Reason = "view"        // no view matches the client
	Views       Reason = "views"       // maxViews, MaxViewsPerPeer
	Debug       Reason = "debug"       // Listener.Debug, maxStatusStreams
	Unread      Reason = "unread"      // unreadTimeout
	Certificate Reason = "certificate" // expired, or signed by a CA that is no longer trusted
	Silent      Reason = "silent"      // firstTimeout
	Handshake   Reason = "handshake"   // TLS: no certificate, or a certificate that is not accepted
)

// Reasons returns all reasons.
func Reasons() []Reason {
	return []Reason{
		Connections, Streams, Peer, Rate, Overload, Requests, Bytes, Receiving, Node, Types,
		Names, Versions, View, Views, Debug, Unread, Certificate, Silent, Handshake,
	}
}

// Error is the error of a refused client. It ends the stream.
type Error struct {
	Reason Reason
	st     *status.Status
}

// New returns an Error. The text is for the client.
func New(why Reason, code codes.Code, format string, args ...any) error {
	return &Error{why, status.Newf(code, format, args...)}
}

func (e *Error) Error() string { return e.st.Err().Error() }

// GRPCStatus returns the status for the client.
func (e *Error) GRPCStatus() *status.Status { return e.st }

// Is reports whether an error is an Error.
func Is(err error) bool {
	return errors.As(err, new(*Error))
}

// Bounded cuts a client's text to 1024 bytes, for logs and statuses.
func Bounded(s string) string { return text.Shorten(s, 1024) }
