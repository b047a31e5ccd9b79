package adsclient

import (
	"errors"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meshrelay/internal/testing/fakexds"
)

// TestAProbeThatIsDeniedIsNotRepeatedSoon_C16: the identity is refused, now and then.
func TestAProbeThatIsDeniedIsNotRepeatedSoon_C16(t *testing.T) {
	inBubble(t, func(t *testing.T, nw *network) {
		came := make(chan time.Time, 100)
		first := nw.serve(t, "first", &fakexds.Server{Options: []grpc.ServerOption{grpc.StreamInterceptor(
			func(any, grpc.ServerStream, *grpc.StreamServerInfo, grpc.StreamHandler) error {
				came <- time.Now()
				return status.Error(codes.Unauthenticated, "who?")
			},
		)}})
		second := nw.serve(t, "second", &fakexds.Server{})
		h := newRecorder()
		c := nw.start(t, h, func(c *Config) { failback(10 * time.Millisecond)(c); c.DeniedBackoff = 300 * time.Millisecond }, first.Addr, second.Addr)
		awaitSync(t, h, c, second.Addr)
		<-came // the stream that was tried first
		one, two := <-came, <-came
		if d := two.Sub(one); d < 250*time.Millisecond {
			t.Errorf("probed again after %v", d)
		}
		if e := c.Addresses()[0].LastError; !strings.Contains(e, "who?") || !strings.Contains(e, "tokenFile") {
			t.Errorf("last error %q", e)
		}
	})
}

// TestAProbeThatIsNotAnsweredEnds: the server lets the stream open, and sends nothing.
func TestAProbeThatIsNotAnsweredEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, nw *network) {
		first, atFirst := counted(t, nw, "first", &fakexds.Server{})
		second := nw.serve(t, "second", &fakexds.Server{})
		first.Fail(errDown)
		h := newRecorder()
		c := nw.start(t, h, failback(20*time.Millisecond), first.Addr, second.Addr)
		awaitSync(t, h, c, second.Addr)
		first.Withhold(meshURL, true)
		first.Fail(nil)
		n := 0
		first.Await("probes", func(r fakexds.Request) bool {
			n++
			return n == 3
		})
		atFirst.mu.Lock()
		if atFirst.max > 1 {
			t.Errorf("%d probes at once", atFirst.max)
		}
		atFirst.mu.Unlock()
		if second.Streams() != 1 || c.Switches() != 0 {
			t.Errorf("%d streams, %d switches", second.Streams(), c.Switches())
		}
		first.Withhold(meshURL, false)
		awaitSync(t, h, c, first.Addr)
	})
}

// TestWhatAProbeIsSentIsAcknowledged_C6, with the names where it asked by name.
func TestWhatAProbeIsSentIsAcknowledged_C6(t *testing.T) {
	inBubble(t, func(t *testing.T, nw *network) {
		first, second := nw.serve(t, "first", &fakexds.Server{}), nw.serve(t, "second", &fakexds.Server{})
		first.Fail(errDown)
		h := newRecorder()
		c := nw.start(t, h, failback(time.Second), first.Addr, second.Addr)
		awaitSync(t, h, c, second.Addr)
		first.Fail(nil)
		ack := first.Await("an ACK", func(r fakexds.Request) bool { return r.Nonce != "" })
		if ack.TypeURL != meshURL || ack.Version == "" || ack.ErrorWasGiven {
			t.Errorf("ACK %+v", ack)
		}
		first.Send(&discoveryv3.DiscoveryResponse{TypeUrl: meshURL, VersionInfo: "next", Nonce: "next"})
		first.Await("another", func(r fakexds.Request) bool { return r.Nonce == "next" && r.Version == "next" })
	})
}

// TestAProbeThatEndsIsAFailure: a probe shows that an address works only when its stream stays
// open and is answered once more.
func TestAProbeThatEndsIsAFailure(t *testing.T) {
	inBubble(t, func(t *testing.T, nw *network) {
		first, open := counted(t, nw, "first", &fakexds.Server{})
		c := newClient(t, newRecorder(), nw.over(failback(time.Hour)), first.Addr, "127.0.0.1:1")
		result := make(chan error, 1)
		go func() { result <- c.probe(t.Context(), 0) }()
		first.Await("its ACK", func(r fakexds.Request) bool { return r.Nonce != "" })
		if a := c.Addresses()[0]; a.HealthySince.IsZero() {
			t.Errorf("%+v", a)
		}
		first.End(errDown)
		if err := <-result; status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), first.Addr) {
			t.Errorf("error %v", err)
		}
		open.await(t, 0)
		c.cfg.FailbackAfter = 1
		if err := c.probe(t.Context(), 0); err != nil {
			t.Error(err)
		}
		open.await(t, 0)
	})
}

func TestAProbeWithoutNamesIsAnError(t *testing.T) {
	c := newClient(t, newRecorder(), func(c *Config) {
		c.Protocol, c.Names = SotW, func(string) []string { return nil }
	}, "127.0.0.1:1")
	if err := c.probe(t.Context(), 0); !errors.Is(err, errNothingWanted) {
		t.Errorf("%v", err)
	}
}
