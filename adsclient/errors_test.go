package adsclient

import (
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestErrorsOfConnectionsAreOneSentence_C16(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{
			status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`),
			"connection refused",
		},
		{
			status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial tcp: lookup nowhere.invalid: no such host"`),
			"lookup nowhere.invalid: no such host",
		},
		{
			status.Error(codes.Unavailable, `connection error: desc = "transport: authentication handshake failed: tls: first record does not look like a TLS handshake"`),
			"TLS handshake failed: tls: first record does not look like a TLS handshake",
		},
		{
			status.Error(codes.Unavailable, `connection error: desc = "error reading server preface: http2: failed reading the frame payload: http2: frame too large, note that the frame header looked like an HTTP/1.1 header"`),
			"an HTTP server answers there, not an xDS server",
		},
		{status.Error(codes.Unavailable, `connection error: desc = "error reading server preface: EOF"`), "the server closes the connection at once"},
		{status.Error(codes.PermissionDenied, "not you"), "PermissionDenied: not you"},
		{fmt.Errorf("response: %w", status.Error(codes.DataLoss, "torn")), "response: rpc error: code = DataLoss desc = torn"},
		{errEnded, errEnded.Error()},
	} {
		got := plain(c.err)
		if got.Error() != c.want {
			t.Errorf("%v\n became %v\n want   %s", c.err, got, c.want)
		}
		if status.Code(got) != status.Code(c.err) {
			t.Errorf("%v: its code became %v", c.err, status.Code(got))
		}
	}
}
