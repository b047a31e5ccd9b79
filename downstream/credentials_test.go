package downstream

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"meshrelay/internal/testing/await"
)

// TestABadFileKeepsWhatIsTrusted: it is counted, and logged once when it begins.
func TestABadFileKeepsWhatIsTrusted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, set := newGate(t, nil)
		log := &lockedLog{}
		r := startInMemory(t, true, set, func(_ *Config, d *Deps) { d.Logger = slog.New(slog.NewTextHandler(log, nil)) })
		all := map[string]string{"clients.crt": badCA, "relay.example.crt": badCertificate}
		for name, what := range all {
			g.replace(name, []byte("nothing"))
			r.eventually(t, name+" is counted", func() bool {
				return testutil.ToFloat64(r.server.metrics.credentials.WithLabelValues(what)) > 3
			})
		}
		s := r.sotw(g.with(g.client(g.ca, "good.example")))
		s.send(subscribe(seV1))
		s.next()
		for _, what := range all {
			logged := func() int {
				return strings.Count(log.String(), "the last good ones are used\" listener=127.0.0.1:0 what="+what)
			}
			r.eventually(t, what+" is logged", func() bool { return logged() >= 1 })
			if got := logged(); got != 1 {
				t.Errorf("%s is logged %d times", what, got)
			}
		}
	})
}

// TestCredentialsRotateUnderLoad: many times, while resources change. No stream of another client ends, and
// nobody misses a change.
func TestCredentialsRotateUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rotations = 25
		g, set := newGate(t, nil)
		r := startInMemory(t, true, set)
		stays := r.follow(nil, g.with(g.client(g.ca, "good.example")))
		loaded := make(chan struct{})
		ctx, stop := context.WithCancel(t.Context())
		go func() {
			defer close(loaded)
			for n := 0; ctx.Err() == nil; n++ {
				r.store.Put(se("shop", fmt.Sprint("r", n%50), fmt.Sprint(n)))
				if n%7 == 0 {
					r.store.Remove(se("shop", fmt.Sprint("r", (n+3)%50), "").Key())
				}
				await.Pass(time.Millisecond)
			}
		}()
		var last *keeper // follows the rotations
		for n := range rotations {
			ca := authority(t, t.TempDir(), "rotating")
			g.trusts(g.ca, ca)
			own := certificateOf(t, g.t.TempDir(), "relay.example", g.ca, func(*x509.Certificate) {})
			g.replace("relay.example.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(own.PrivateKey))}))
			g.replace("relay.example.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Certificate[0]}))
			var index map[string]string
			if last != nil {
				last.wantEnd(t, "signed by none")
				index = last.has()
			}
			cert := g.client(ca, fmt.Sprint("client-", n))
			r.eventually(t, "the client is let in", func() bool { // once the files are read
				last = r.follow(index, g.with(cert))
				return last.in()
			})
			if t.Failed() {
				break
			}
		}
		stop()
		<-loaded
		fresh := r.follow(nil, g.with(g.client(g.ca, "fresh.example")))
		for n, f := range []*keeper{stays, last} {
			r.eventually(t, fmt.Sprint("client ", n, " has what a fresh one has"), func() bool { has := f.has(); return len(has) > 0 && maps.Equal(has, fresh.has()) })
			select {
			case <-f.ended:
				t.Errorf("the stream of client %d has ended: %v", n, f.err)
			default:
			}
		}
	})
}
