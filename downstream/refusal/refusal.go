// Package refusal tells why a client is refused: by a reason, for a metric, and by the gRPC
// status that the client gets. It must not know how limits are counted.
package refusal

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meshrelay/internal/text"
)

// Reason is the limit or rule for which a client, or its connection, is refused.
type Reason string

// The reasons.
const (
	Connections Reason = "connections" // MaxConnections
	Streams     Reason = "streams"     // MaxStreams
	Peer        Reason = "peer"        // MaxConnectionsPerPeer, MaxStreamsPerPeer
	Rate        Reason = "rate"        // NewStreamsPerSecond
	Overload    Reason = "overload"    // Deps.Overloaded
	Headers     Reason = "headers"     // MaxHeaderBytes
	Requests    Reason = "requests"    // RequestsPerSecond
	Bytes       Reason = "bytes"       // MaxRequestBytes
	Receiving   Reason = "receiving"   // too many large requests, or one that does not come to its end
	Node        Reason = "node"        // MaxNodeBytes, or no node
	Types       Reason = "types"       // MaxTypesPerClient, or a type that can be none
	Names       Reason = "names"       // MaxNamesPerClient and the like, or a name that can be none
	Versions    Reason = "versions"    // MaxVersionBytes
	View        Reason = "view"        // no view is for the client
	Views       Reason = "views"       // maxViews, MaxViewsPerPeer
	Debug       Reason = "debug"       // a debug answer waits already
	Unread      Reason = "unread"      // SendTimeout
	Certificate Reason = "certificate" // expired, or its CA is not trusted any more
	Silent      Reason = "silent"      // FirstRequestTimeout
	Handshake   Reason = "handshake"   // TLS: no certificate, or one that is refused
)

// Reasons returns all reasons.
func Reasons() []Reason {
	return []Reason{
		Connections, Streams, Peer, Rate, Overload, Headers, Requests, Bytes, Receiving, Node, Types,
		Names, Versions, View, Views, Debug, Unread, Certificate, Silent, Handshake,
	}
}

// Error ends the stream of a client that is refused.
type Error struct {
	Reason Reason
	st     *status.Status
}

// New returns an Error. The client gets the text.
func New(why Reason, code codes.Code, format string, args ...any) error {
	return &Error{why, status.Newf(code, format, args...)}
}

func (e *Error) Error() string { return e.st.Err().Error() }

// GRPCStatus makes the error the status that the client gets.
func (e *Error) GRPCStatus() *status.Status { return e.st }

// Is reports whether an error is an Error.
func Is(err error) bool {
	var e *Error
	return errors.As(err, &e)
}

// Bounded cuts text from a client to what a log line or a status can bear.
func Bounded(s string) string { return text.Shorten(s, 1024) }
