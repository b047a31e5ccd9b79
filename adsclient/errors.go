package adsclient

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strconv"
	"strings"
	"unicode"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meshrelay/internal/text"
)

const (
	// maxErrorText bounds, in bytes, a server's text in errors and logs.
	maxErrorText = 1 << 10
	// speaksHTTP replaces gRPC's error for a server that does not speak HTTP/2, and hangsUp the one for a
	// server that sends nothing.
	speaksHTTP = "an HTTP server answers there, not an xDS server"
	hangsUp    = "the server closes the connection at once"
)

var (
	// errNotRelay ends the probe of a server that is not a relay.
	errNotRelay = errors.New("server is not a relay")
	errNoHeader = errors.New("the server ended the stream without an answer")
	errEnded    = errors.New("the server ended the stream without a reason")
	// errStalled ends a stream without progress before its first answers.
	errStalled = errors.New("no progress")
	// errNoStream ends the wait for a stream.
	errNoStream = status.Error(codes.DeadlineExceeded, "no stream could be opened in time: the server accepts connections but no streams")
	// errPanic is the error of a handshake that has panicked.
	errPanic = errors.New("internal error of the relay")
	// errUnread ends a stream whose server has stopped reading.
	errUnread = status.Errorf(codes.ResourceExhausted, "the server has left %d acknowledgements unread", acksWaiting)
)

// movedError ends a stream because a preferred address works again.
type movedError struct {
	to      int
	address string
}

func (e *movedError) Error() string {
	return fmt.Sprintf("left for %s, which is preferred and works again", e.address)
}

// DeltaError ends a delta stream whose server does not speak delta as a Handler needs it. The client then uses SotW
// with this address, also where Protocol is Delta.
type DeltaError struct {
	Why string // bounded by the Handler
}

// Error implements error.
func (e *DeltaError) Error() string { return "delta is left for SotW: " + e.Why }

// tooManyPings reports whether a server has ended the connection for pings, in the words of gRPC's proposal A8.
func tooManyPings(err error) bool {
	return err != nil && strings.Contains(err.Error(), "too_many_pings")
}

// Explain returns an error of a stream in plain words, with a cure if one is known.
func Explain(err error) error { return explain(plain(err)) }

// explain adds a cure to an error, if one is known, and bounds its text.
func explain(err error) error {
	if err == nil {
		return nil
	}
	err = bounded(err)
	hint := ""
	switch status.Code(err) {
	case codes.Unauthenticated:
		hint = "the server does not accept the relay's identity: check tokenFile (audience istio-ca, not expired) or the client certificate; they must be from a cluster that the server knows"
	case codes.PermissionDenied:
		if strings.Contains(err.Error(), "no view matches this client") {
			return err // the other relay has explained it
		}
		hint = "the server knows the relay's identity and refuses the request: run under a service account of istiod's root namespace, with node.namespace set to it; istiod keeps the api generator to control-plane identities unless ENABLE_XDS_API_GENERATOR_AUTH=false"
	default:
		if hint = handshakeHint(err.Error()); hint == "" {
			return err
		}
	}
	return fmt.Errorf("%w (%s)", err, hint)
}

// handshakeHint returns a cure for an error of TLS, or of missing TLS, else an empty text.
func handshakeHint(text string) string {
	for _, h := range [][2]string{
		{"first record does not look like a TLS handshake", "the server speaks plaintext there: give its port for TLS, or set plaintext: true"},
		{speaksHTTP, "it may be the admin address of a relay: give the port for xDS"},
		{hangsUp, "it may expect TLS: give its port for plaintext, or set tls"},
		{"tls: certificate required", "the server wants a client certificate: tls.certFile and tls.keyFile"},
		{"certificate signed by unknown authority", "tls.caFile must contain the root of the server's certificate"},
		{"certificate is valid for", "set tls.serverName to a name in the server's certificate"},
		{"too_many_pings", "from now on the relay pings it every " + calmPingAfter.String()},
		{"certificate has expired or is not yet valid", "renew the server's certificate, or correct the clocks"},
	} {
		if strings.Contains(text, h[0]) {
			return h[1]
		}
	}
	return ""
}

// plain returns a gRPC error without the prefixes that its layers add, such as "connection refused"
// or "PermissionDenied: …". It keeps the code. It returns other errors unchanged.
func plain(err error) error {
	grpc, ok := err.(interface{ GRPCStatus() *status.Status }) // what wraps one has words of its own
	if !ok {
		return err
	}
	s := grpc.GRPCStatus()
	cause, wrapped := strings.CutPrefix(s.Message(), "connection error: desc = ")
	if !wrapped {
		return &boundedError{text: s.Code().String() + ": " + s.Message(), code: s.Code()}
	}
	if unquoted, err := strconv.Unquote(cause); err == nil {
		cause = unquoted
	}
	cause = strings.Replace(strings.TrimPrefix(cause, "transport: "), "authentication handshake failed", "TLS handshake failed", 1)
	if dial, ok := strings.CutPrefix(cause, "Error while dialing: "); ok {
		cause = strings.TrimPrefix(dial, "dial tcp: ")
		// "dial tcp ADDRESS: connect: connection refused": keep what follows the address.
		if _, reason, ok := strings.Cut(dial, ": connect: "); ok {
			cause = reason
		}
	}
	switch {
	case strings.Contains(cause, "looked like an HTTP/1.1 header"):
		cause = speaksHTTP
	case strings.HasSuffix(cause, "error reading server preface: EOF"):
		cause = hangsUp
	}
	return &boundedError{text: cause, code: s.Code()}
}

func denied(err error) bool {
	code := status.Code(err)
	return code == codes.Unauthenticated || code == codes.PermissionDenied
}

// bounded returns err if its text is short and printable. Otherwise it returns an error with the
// code, and the text of clean.
func bounded(err error) error {
	if short := clean(err.Error()); short != err.Error() {
		return &boundedError{text: short, code: status.Code(err)}
	}
	return err
}

type boundedError struct {
	text string
	code codes.Code
}

func (e *boundedError) Error() string { return e.text }

// GRPCStatus makes status.Code work.
func (e *boundedError) GRPCStatus() *status.Status { return status.New(e.code, e.text) }

// clean replaces unprintable characters in s, and cuts it to maxErrorText bytes and a mark.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text.Shorten(toValidUTF8(s), maxErrorText))
}

func toValidUTF8(s string) string { return strings.ToValidUTF8(s, "�") }

// refusesSize reports whether a server refuses a request for its size, in the words of a gRPC
// library or of a relay. ResourceExhausted has other causes, too.
func refusesSize(err error) bool {
	text := strings.ToLower(status.Convert(err).Message())
	for _, words := range []string{"larger than max", "exceeds maximum size", "maxrequestbytes"} {
		if strings.Contains(text, words) {
			return true
		}
	}
	return false
}

// tooLarge returns an error with advice for a response over the limit, nil for other errors. A
// server uses the same text for a request over its own limit, with another number.
func tooLarge(err error, limit int) error {
	if status.Code(err) != codes.ResourceExhausted {
		return nil
	}
	if text := status.Convert(err).Message(); strings.HasPrefix(text, "grpc: ") && strings.HasSuffix(text, fmt.Sprintf("vs. %d)", limit)) {
		return errTooLarge(limit, text)
	}
	return nil
}

func errTooLarge(limit int, detail string) error {
	return status.Errorf(codes.OutOfRange, "a response is larger than the limit of %d bytes: raise the limit (maxResponseBytes), or let the server serve less (%s)", limit, detail)
}

// Panic is a panic in a goroutine of a Client, which has ended its stream.
type Panic struct {
	// Value is the argument of panic, and Stack the stack. Both are bounded.
	Value, Stack string
}

// Error implements error.
func (p *Panic) Error() string { return "internal error of the relay: " + p.Value }

// maxStack bounds the stack of a Panic, in bytes.
const maxStack = 16 << 10

// contain, deferred, makes a panic end the streams of the connection, and Client.Run.
func (r *receiver) contain() {
	if v := recover(); v != nil {
		r.cancel(&Panic{text.Shorten(fmt.Sprint(v), maxErrorText), text.Shorten(string(debug.Stack()), maxStack)})
	}
}
