package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// relay is the product, as a process.
type relay struct {
	*process
	t      *testing.T
	name   string
	xds    string // address
	admin  string
	config string
}

// newRelay writes a config for a relay over upstreams, each "name=host:port" for an
// xds source or "name=path" for a file source. downstream are further lines of that
// section.
func newRelay(t *testing.T, name string, upstreams []string, downstream ...string) *relay {
	t.Helper()
	r := &relay{t: t, name: name, xds: freePort(t), admin: freePort(t)}
	r.config = filepath.Join(t.TempDir(), "relay.yaml")
	var b strings.Builder
	fmt.Fprintf(&b, "node: {id: %s}\nlog: {level: debug}\nadmin: {address: %q}\nupstreams:\n", name, r.admin)
	for _, u := range upstreams {
		upstream, where, _ := strings.Cut(u, "=")
		if strings.HasPrefix(where, "/") {
			fmt.Fprintf(&b, "- name: %s\n  file: {path: %s}\n", upstream, where)
			continue
		}
		fmt.Fprintf(&b, "- name: %s\n  xds:\n    addresses: [%q]\n    plaintext: true\n", upstream, where)
	}
	fmt.Fprintf(&b, "downstream:\n  listeners: [{address: %q, plaintext: true}]\n", r.xds)
	for _, line := range downstream {
		fmt.Fprintf(&b, "  %s\n", line)
	}
	writeFile(t, r.config, b.String())
	return r
}

// start runs the relay, for the first time or again on the same ports.
func (r *relay) start() *relay {
	r.t.Helper()
	r.process = run(r.t, "relay "+r.name, "", nil, binary(r.t, "RELAY_BIN", "../bin/relay"), "serve", "-c", r.config)
	return r
}

// ready waits until all upstreams have synced.
func (r *relay) ready() *relay {
	r.t.Helper()
	eventually(r.t, "relay "+r.name+" is ready", func() error {
		if !r.alive() {
			return fmt.Errorf("it has ended")
		}
		_, err := httpGet("http://" + r.admin + "/ready")
		return err
	})
	return r
}

func (r *relay) configs() configs {
	r.t.Helper()
	c, err := configz(r.admin)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}
