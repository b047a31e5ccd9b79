package upstreams_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"meshrelay/adsclient"
	"meshrelay/config"
	"meshrelay/upstreams/xds"
)

// Two servers that fail in turn, each in its own way.
func TestEachAddressIsComplainedAboutOnce(t *testing.T) {
	s := newXDSScript(t, stale(config.Staleness{StaleAfter: config.Duration(time.Hour)}))
	fails := func(address, why string) {
		s.x.HandleState(adsclient.State{Phase: adsclient.Disconnected, Address: address, Err: errors.New(why)})
	}
	s.warns.n.Store(0)
	for range 100 {
		fails("a:1", "refused")
		fails("b:1", "no such host")
	}
	if n := s.warns.n.Load(); n != 2 {
		t.Errorf("%d warnings, want 2", n)
	}
	s.x.HandleState(adsclient.State{Phase: adsclient.Connected, Address: "a:1", Protocol: adsclient.SotW})
	fails("a:1", "refused")
	if n := s.warns.n.Load(); n != 3 {
		t.Errorf("%d warnings after it was there again, want 3", n)
	}
}

// The others must not have to do without the relay because of it.
func TestAMissingCertificateIsNoReasonNotToStart(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "f.yaml"), serviceEntry("f", "f.example"))
	gone := xdsUpstream("east", startServer(t))
	sectionOf(gone).Plaintext, sectionOf(gone).TLS = false, &xds.TLS{CAFile: filepath.Join(dir, "gone.pem")}
	u := fileUpstream("local", filepath.Join(dir, "f.yaml"))
	r := runManager(t, nil, gone, u)
	r.awaitServed("shop/f=f.example@local")
	r.await("it is said which file", func() bool { return strings.Contains(r.m.Status()[0].LastError, "gone.pem") })
	other := *sectionOf(gone)
	other.TLS = &xds.TLS{CAFile: filepath.Join(dir, "also-gone.pem")}
	gone.Source = &other
	if err := r.apply(gone, u); err == nil || !strings.Contains(err.Error(), "also-gone.pem") {
		t.Errorf("a reload with a missing certificate: %v", err)
	}
}
