package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// relayOf returns a relay with this config, in which ADMIN, XDS and DIR stand for addresses of
// its own and for a directory that outlives it, with a short name.
func relayOf(t *testing.T, name, text string) *relay {
	t.Helper()
	dir, err := os.MkdirTemp("", "relay")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	r := &relay{t: t, name: name, xds: freePort(t), admin: freePort(t), config: filepath.Join(dir, "relay.yaml")}
	r.rewrite(dir, text)
	return r
}

// rewrite makes this the config.
func (r *relay) rewrite(dir, text string) {
	r.t.Helper()
	writeFile(r.t, r.config, fmt.Sprintf("node: {id: %s}\nadmin: {address: %q, socket: %s/a.sock}\n", r.name, r.admin, dir)+
		strings.NewReplacer("DIR", dir, "XDS", r.xds).Replace(text))
}

// readiness returns the status code and the text of a relay's /ready.
func (r *relay) readiness() (int, string) {
	resp, err := client.Get("http://" + r.admin + "/ready")
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(body)
}

// awaitReadiness waits until /ready has that status code and these texts.
func (r *relay) awaitReadiness(code int, texts ...string) {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("/ready of %s is %d and has %q", r.name, code, texts), func() error {
		got, body := r.readiness()
		if got != code {
			return fmt.Errorf("%d: %s", got, body)
		}
		for _, text := range texts {
			if !strings.Contains(body, text) {
				return fmt.Errorf("%s", body)
			}
		}
		return nil
	})
}

// serves reports whether the istiod has opened its gRPC port.
func (i *istiod) serves() bool {
	conn, err := net.Dial("tcp", i.grpc)
	if err == nil {
		conn.Close()
	}
	return err == nil
}

// TestANewReplicaHoldsAnIstiodUntilSomebodySaysSo_S4: a relay with an empty state.dir, of whose
// two upstreams one is down, does not tell an istiod that there is nothing of that one.
func TestANewReplicaHoldsAnIstiodUntilSomebodySaysSo_S4(t *testing.T) {
	t.Parallel()
	east, west := newIstiod(t, "east"), newIstiod(t, "west") // west is not started
	east.write(t, "a", "a.example")
	west.write(t, "b", "b.example")
	east.start().ready()
	r := relayOf(t, "hub", fmt.Sprintf(`state: {dir: DIR/state}
upstreams:
- {name: east, xds: {addresses: [%q], plaintext: true}}
- {name: west, xds: {addresses: [%q], plaintext: true}}
downstream: {startupTimeout: 500ms, listeners: [{address: XDS, plaintext: true}]}
`, east.grpc, west.grpc)).start()
	eventually(t, "the relay listens", func() error {
		conn, err := net.Dial("tcp", r.xds)
		if err == nil {
			conn.Close()
		}
		return err
	})
	third := newIstiod(t, "third", r.xds).start()
	eventually(t, "the istiod is held", func() error {
		body, err := httpGet("http://" + r.admin + "/debug/connections")
		if err == nil && !contains(body, `"held":true`) && !contains(body, `"held": true`) {
			err = fmt.Errorf("%s", body)
		}
		return err
	})
	r.awaitReadiness(http.StatusServiceUnavailable, "upstream west: ", "clients were never served from this state.dir", `"relay serve-without west"`)
	if body, err := httpGet("http://" + r.admin + "/healthz"); err != nil {
		t.Errorf("/healthz: %s %v", body, err)
	}
	if third.serves() {
		t.Error("the istiod serves, with part of the configuration")
	}

	// Killed and started again meanwhile, it waits as before: what it has of east shows nothing.
	r.kill()
	r.start()
	r.awaitReadiness(http.StatusServiceUnavailable, `"relay serve-without west"`)

	if out, code := r.command("serve-without", "west"); code != 0 || !strings.Contains(out, "clients no longer wait for upstream west") {
		t.Fatalf("%s %d", out, code)
	}
	r.awaitReadiness(http.StatusOK, `clients are served without it: an operator ran "relay serve-without"`)
	if !third.alive() { // an istiod may exit when its source goes
		third.start()
	}
	third.ready()
	eventually(t, "the istiod has what east has", func() error { return differs(third.configs(), east.configs()) })

	west.start().ready()
	eventually(t, "the istiod has what west has, too", func() error { return differs(third.configs(), union(east.configs(), west.configs())) })
	r.awaitReadiness(http.StatusOK, "ready\n")
	if out, code := r.command("serve-without", "west"); code == 0 || !strings.Contains(out, "nobody waits for upstream west") {
		t.Errorf("%s %d", out, code)
	}
}

// TestARelayThatHasServedWaitsForNobodyItHasOnDisk_S4, and for what is new to it no longer than
// startupTimeout.
func TestARelayThatHasServedWaitsForNobodyItHasOnDisk_S4(t *testing.T) {
	t.Parallel()
	east, west := newIstiod(t, "east"), newIstiod(t, "west") // west is never started
	east.write(t, "a", "a.example")
	east.start().ready()
	const tail = `state: {dir: DIR/state}
downstream: {startupTimeout: 500ms, listeners: [{address: XDS, plaintext: true}]}
upstreams:
`
	upstream := func(name string, i *istiod) string {
		return fmt.Sprintf("- {name: %s, xds: {addresses: [%q], plaintext: true}}\n", name, i.grpc)
	}
	r := relayOf(t, "hub", tail+upstream("east", east)).start().ready()
	want := east.configs()
	r.terminate()
	east.kill()

	r.rewrite(filepath.Dir(r.config), tail+upstream("east", east)+upstream("west", west))
	r.start()
	r.awaitReadiness(http.StatusOK, "upstream west: ", "clients are served without it: it is new")
	third := newIstiod(t, "third", r.xds).start().ready()
	eventually(t, "the istiod has what was on disk", func() error { return differs(third.configs(), want) })
}

// TestTwoMeshesAndTheirRelayStartCold_S4: two istiods read the relay, and the relay reads them.
// None of the three has anything at first, but for the relay's empty state.dir.
func TestTwoMeshesAndTheirRelayStartCold_S4(t *testing.T) {
	t.Parallel()
	listeners := map[string]string{"east": freePort(t), "west": freePort(t)}
	meshes := map[string]*istiod{}
	for name, listener := range listeners {
		i := newIstiod(t, name)
		i.write(t, name, name+".example")
		i.args = i.args[:len(i.args)-2] // without --configDir: it is a source beside the relay
		writeFile(t, i.mesh, fmt.Sprintf("trustDomain: %s.example\nconfigSources:\n- address: xds://%s\n- address: fs://%s\n", name, listener, i.configDir))
		meshes[name] = i
	}
	r := relayOf(t, "hub", fmt.Sprintf(`state: {dir: DIR/state}
upstreams:
- {name: east, xds: {addresses: [%q], plaintext: true}}
- {name: west, xds: {addresses: [%q], plaintext: true}}
views: [{name: east, clusterID: east}, {name: west, clusterID: west}]
downstream:
  startupTimeout: 1s
  listeners: [{address: %q, plaintext: true, view: east}, {address: %q, plaintext: true, view: west}]
`, meshes["east"].grpc, meshes["west"].grpc, listeners["east"], listeners["west"])).start()
	for _, listener := range listeners {
		eventually(t, "the relay listens", func() error {
			conn, err := net.Dial("tcp", listener)
			if err == nil {
				conn.Close()
			}
			return err
		})
	}
	began := time.Now()
	for _, i := range meshes {
		i.start()
	}
	for _, i := range meshes {
		i.ready()
	}
	t.Logf("both istiods serve after %v", time.Since(began).Round(10*time.Millisecond))
	r.ready()
	const kind = "networking.istio.io/ServiceEntry shop/"
	for name, other := range map[string]string{"east": "west", "west": "east"} {
		eventually(t, name+" has what "+other+" has", func() error {
			if have := meshes[name].configs(); have[kind+name] == "" || have[kind+other] == "" {
				return fmt.Errorf("it has %v", have)
			}
			return nil
		})
	}
	r.awaitReadiness(http.StatusOK, "ready\n")
}

// TestTwoRelaysOfOneNameInAChainSaySo: the second can take nothing from the first, and serves
// all of it as soon as it has a name of its own.
func TestTwoRelaysOfOneNameInAChainSaySo(t *testing.T) {
	t.Parallel()
	east := newIstiod(t, "east")
	east.write(t, "a", "a.example")
	east.start().ready()
	chain := func(relay, upstream, address string) string {
		return fmt.Sprintf(`provenance: {relay: %s}
upstreams: [{name: %s, xds: {addresses: [%q], plaintext: true}}]
downstream: {startupTimeout: 500ms, listeners: [{address: XDS, plaintext: true}]}
`, relay, upstream, address)
	}
	first := relayOf(t, "first", chain("mesh-hub", "east", east.grpc)).start().ready()
	second := relayOf(t, "second", chain("mesh-hub", "first", first.xds)).start()
	second.awaitReadiness(http.StatusOK, "upstream first: failed since ", `a relay of this relay's own name, "mesh-hub"`, "give each relay a name of its own with provenance.relay")
	if out, code := second.command("status"); code != 0 || !strings.Contains(out, "failed") || strings.Contains(out, "synced") {
		t.Errorf("%s %d", out, code)
	}
	second.logs(`level=ERROR msg="upstream has this relay's own name" upstream=first`)
	if got := len(second.configs()); got != 0 {
		t.Errorf("%d resources were taken", got)
	}
	first.awaitReadiness(http.StatusOK, "ready\n")

	second.terminate()
	second.rewrite(filepath.Dir(second.config), chain("edge", "first", first.xds))
	second.start().ready()
	eventually(t, "the second has what the first has", func() error { return differs(second.configs(), first.configs()) })
	second.awaitReadiness(http.StatusOK, "ready\n")
}
