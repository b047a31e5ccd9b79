package adsclient

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"meshrelay/internal/testing/fakexds"
)

// TestErrorsOfConnectionsAreOneSentence_C16, with a cure. It fails when gRPC tells a dial in other words.
func TestErrorsOfConnectionsAreOneSentence_C16(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := lis.Addr().String()
	lis.Close()
	hangsUp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := hangsUp.Accept()
			if err != nil {
				return
			}
			conn.(*net.TCPConn).CloseWrite() //nolint:errcheck // the client then sees the end
			defer conn.Close()
		}
	}()
	t.Cleanup(func() { hangsUp.Close(); <-done })
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.EnableHTTP2, secure.Config.ErrorLog = true, log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	plaintext := fakexds.Start(t, &fakexds.Server{})
	refuses := fakexds.Start(t, &fakexds.Server{})
	refuses.Fail(status.Error(codes.Unavailable, "not now"))
	tls := credentials.NewTLS(nil)
	for name, tc := range map[string]struct {
		address string
		creds   credentials.TransportCredentials
		want    string
	}{
		"nobody listens": {nobody, insecure.NewCredentials(), "connection refused"},
		"no such name":   {"nowhere.invalid:15010", insecure.NewCredentials(), "lookup nowhere.invalid"},
		"plaintext": {plaintext.Addr, tls, "TLS handshake failed: tls: first record does not look like a TLS handshake " +
			"(the server speaks plaintext there: give its port for TLS, or set plaintext: true)"},
		"another CA":         {secure.Listener.Addr().String(), tls, "TLS handshake failed: tls: failed to verify certificate: x509: certificate signed by unknown authority (tls.caFile must contain the root of the server's certificate)"},
		"a web server":       {web.Listener.Addr().String(), insecure.NewCredentials(), errHTTP.Error() + " (it may be the admin address of a relay: give the port for xDS)"},
		"an end":             {hangsUp.Addr().String(), insecure.NewCredentials(), errHangsUp.Error() + " (it may expect TLS: give its port for plaintext, or set tls)"},
		"a word of a server": {refuses.Addr, insecure.NewCredentials(), "Unavailable: not now"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newRecorder()
			start(t, h, func(c *Config) { sotw(c); c.Credentials = tc.creds }, tc.address)
			h.await(t, "the error", func() bool { return h.last().Err != nil })
			h.mu.Lock()
			defer h.mu.Unlock()
			got := h.last().Err
			if want := tc.address + ": " + tc.want; !strings.HasPrefix(got.Error(), want) || len(got.Error()) > len(want) && name != "no such name" {
				t.Errorf("it is told %q\nwant          %q", got, want)
			}
			if status.Code(got) != codes.Unavailable {
				t.Errorf("the code became %v", status.Code(got))
			}
		})
	}
}

func TestOtherErrorsKeepTheirWords(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{status.Error(codes.PermissionDenied, "not you"), "PermissionDenied: not you"},
		{fmt.Errorf("response: %w", status.Error(codes.DataLoss, "torn")), "response: rpc error: code = DataLoss desc = torn"},
		{errEnded, errEnded.Error()},
	} {
		if got := (&Witness{}).plain(c.err); got.Error() != c.want || status.Code(got) != status.Code(c.err) {
			t.Errorf("%v became %v, want %s", c.err, got, c.want)
		}
	}
}
