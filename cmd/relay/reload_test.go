//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"meshrelay/admin"
)

// TestAReloadIsTakenOverAtOnce: two configs serve only the copies of a, one by the order of upstreams, the other by a
// view. A reload from one to the other never serves the copies of b.
func TestAReloadIsTakenOverAtOnce(t *testing.T) {
	const entries, reloads = 2000, 3
	p := newProcess(t, "")
	write := func(source, more string) {
		t.Helper()
		var b strings.Builder
		for i := range entries {
			fmt.Fprintf(&b, "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: e%d, namespace: shop}\nspec: {hosts: [%s.example]}\n", i, source)
		}
		path := filepath.Join(p.dir, source+".yaml")
		if err := os.WriteFile(path+".new", []byte(b.String()+more), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write("a", "")
	write("b", "")
	const (
		byOrder = "upstreams: [{name: a, file: {path: a.yaml}}, {name: b, file: {path: b.yaml}}]\ndownstream: {LISTEN}\n"
		byView  = "upstreams: [{name: b, file: {path: b.yaml}}, {name: a, file: {path: a.yaml}}]\nviews: [{name: all, default: true, sources: [a]}]\ndownstream: {LISTEN}\n"
	)
	p.write(byOrder)
	p.start()
	w := watchEntries(t, p.xds)
	// receive takes one response, and returns how many entries are of a and of b, and whether
	// one is the last that there will be.
	receive := func() (ofA, ofB int, last bool) {
		resp, err := w.stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		w.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: entryType, ResponseNonce: resp.Nonce})
		for _, r := range resp.Resources {
			switch body := string(r.Resource.Value); {
			case strings.Contains(body, "a.example"):
				ofA++
			case strings.Contains(body, "b.example"):
				ofB++
			case strings.Contains(body, "last.example"):
				last = true
			}
		}
		return ofA, ofB, last
	}
	for got := 0; got < entries; {
		ofA, _, _ := receive()
		got += ofA
	}
	for i := range 2 * reloads {
		p.write([]string{byView, byOrder}[i%2])
		if _, err := (admin.Client{Address: p.admin, Socket: filepath.Join(p.dir, "admin.sock")}).Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	write("a", "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: last, namespace: shop}\nspec: {hosts: [last.example]}\n")
	for {
		ofA, ofB, last := receive()
		if ofA+ofB > 0 {
			t.Errorf("%d copies of a were sent again, and %d of b, which nothing serves", ofA, ofB)
		}
		if last {
			break
		}
	}
}
