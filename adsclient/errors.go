package adsclient

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meshrelay/internal/panics"
	"meshrelay/internal/text"
)

// maxErrorText bounds, in bytes, a server's text in errors and logs.
const maxErrorText = 1 << 10

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

// tooManyPings reports whether a server has ended the connection for pings. gRPC's proposal A8 has this text for
// servers, and gRPC shows it.
func tooManyPings(err error) bool {
	return err != nil && strings.Contains(err.Error(), "too_many_pings")
}

// explain adds a cure to an error, if one is known, and bounds its text.
func explain(err error) error {
	if err == nil {
		return nil
	}
	hint := ""
	switch status.Code(err) {
	case codes.Unauthenticated:
		hint = "the server does not accept the relay's identity: check tokenFile (audience istio-ca, not expired) or the client certificate; they must be from a cluster that the server knows"
	case codes.PermissionDenied:
		if strings.Contains(err.Error(), "no view matches this client") {
			return bounded(err) // the other relay has explained it
		}
		hint = "the server knows the relay's identity and refuses the request: run under a service account of istiod's root namespace, with node.namespace set to it; istiod keeps the api generator to control-plane identities unless ENABLE_XDS_API_GENERATOR_AUTH=false"
	default:
		if hint = cure(err); hint == "" {
			return bounded(err)
		}
	}
	return fmt.Errorf("%w (%s)", bounded(err), hint)
}

// cure returns what to do about an error of a connection, else an empty text.
func cure(err error) string {
	switch invalid, is := errors.AsType[x509.CertificateInvalidError](err); {
	case errors.As(err, new(tls.RecordHeaderError)):
		return "the server speaks plaintext there: give its port for TLS, or set plaintext: true"
	case errors.Is(err, errHTTP):
		return "it may be the admin address of a relay: give the port for xDS"
	case errors.Is(err, errHangsUp):
		return "it may expect TLS: give its port for plaintext, or set tls"
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return "tls.caFile must contain the root of the server's certificate"
	case errors.As(err, new(x509.HostnameError)):
		return "set tls.serverName to a name in the server's certificate"
	case is && invalid.Reason == x509.Expired:
		return "renew the server's certificate, or correct the clocks"
	case strings.Contains(err.Error(), "tls: certificate required"): // crypto/tls has no type for a server's alert
		return "the server wants a client certificate: tls.certFile and tls.keyFile"
	case tooManyPings(err):
		return "from now on the relay pings it every " + calmPingAfter.String()
	}
	return ""
}

// plain returns a status of gRPC as an error, with its code in the text. A connection that can not be dialled has only
// the reason, such as "connection refused". gRPC shows the reason in this text only, unless it gets a dialer, and with
// a dialer it uses no proxy.
func plain(s *status.Status) error {
	const dialing = "connection error: desc = \"transport: Error while dialing: "
	cause, dialled := strings.CutPrefix(s.Message(), dialing)
	if !dialled {
		return &boundedError{text: s.Code().String() + ": " + s.Message(), code: s.Code()}
	}
	if unquoted, err := strconv.Unquote(`"` + cause); err == nil {
		cause = unquoted
	}
	if _, reason, ok := strings.Cut(cause, ": connect: "); ok { // "dial tcp ADDRESS: connect: connection refused"
		cause = reason
	}
	return &boundedError{text: strings.TrimPrefix(cause, "dial tcp: "), code: s.Code()}
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

// contain calls f. A panic of f ends the streams of the connection, and Client.Run.
func (r *receiver) contain(f func()) {
	if p := panics.Try(f); p != nil {
		r.cancel(p)
	}
}
