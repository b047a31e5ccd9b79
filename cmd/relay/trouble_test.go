package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"meshrelay/admin"
	"meshrelay/internal/testing/await"
)

// telling has relays that tell one another of trouble: east has files, hub has east and files of its own, far has hub, and
// blind and narrow have hub by views that hide what is of east. East mirrors hub, too.
type telling struct {
	files                         string
	east, hub, far, blind, narrow running
	endEast                       func()
}

func tellingRelays(t *testing.T) telling {
	t.Helper()
	c := telling{files: t.TempDir()}
	ports := freePorts(t, 10)
	for i, r := range []*running{&c.east, &c.hub, &c.far, &c.blind, &c.narrow} {
		*r = running{xds: fmt.Sprintf("127.0.0.1:%d", ports[2*i]), admin: fmt.Sprintf("127.0.0.1:%d", ports[2*i+1])}
	}
	own := t.TempDir()
	c.fill(t)
	writeEntries(t, own, "home", 1)
	from := func(name, address string) string {
		return fmt.Sprintf("- {name: %s, xds: {addresses: [%q], plaintext: true}}\n", name, address)
	}
	c.endEast = serveConfig(t, fmt.Sprintf("node: {id: r-east}\nadmin: {address: %q}\ndownstream: {startupTimeout: 500ms, listeners: [{address: %q, plaintext: true}]}\nupstreams:\n- {name: files, file: {path: %q}, guard: {percent: 50}}\n", c.east.admin, c.east.xds, c.files)+from("back", c.hub.xds))
	c.hub.run(t, "r-hub", fmt.Sprintf(`views:
- {name: blind, match: {nodeIDs: ["*~r-blind.*"]}, sources: [own]}
- {name: narrow, match: {nodeIDs: ["*~r-narrow.*"]}, namespaces: {include: [home]}}
- {name: all, default: true}
upstreams:
- {name: own, file: {path: %q}}
`, own)+from("east", c.east.xds))
	for name, r := range map[string]running{"r-far": c.far, "r-blind": c.blind, "r-narrow": c.narrow} {
		r.run(t, name, "upstreams:\n"+from("hub", c.hub.xds))
	}
	for _, r := range []running{c.east, c.hub, c.far, c.blind, c.narrow} {
		r.awaitReady(t)
	}
	c.awaitTold(t, c.far)
	return c
}

func writeEntries(t *testing.T, dir, namespace string, n int) {
	t.Helper()
	for i := range n {
		text := fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: e%d, namespace: %s}\nspec: {hosts: [e%[1]d.%[2]s.example], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS}\n", i, namespace)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("e%d.yaml", i)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func (c telling) fill(t *testing.T) { writeEntries(t, c.files, "shop", 12) }

func (c telling) empty(t *testing.T) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(c.files, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
}

var sinceTime = regexp.MustCompile(` since 20\S+Z`)

// told returns the reasons of a relay that begin with "at ", without times.
func (r running) told() (lines []string) {
	ready, err := admin.Client{Address: r.admin}.Ready(context.Background())
	if err != nil {
		return []string{err.Error()}
	}
	for _, reason := range ready.Reasons {
		if strings.HasPrefix(reason, "at ") {
			lines = append(lines, sinceTime.ReplaceAllString(reason, ""))
		}
	}
	if !ready.Ready {
		lines = append(lines, "not ready")
	}
	return lines
}

func (c telling) awaitTold(t *testing.T, r running, want ...string) {
	t.Helper()
	var got []string
	defer func() {
		if t.Failed() {
			t.Logf("it is told %q, want %q", got, want)
		}
	}()
	await.Until(t, fmt.Sprintf("%q is told", want), func() bool {
		got = r.told()
		return slices.Equal(got, want)
	})
}

// TestTroubleTravels_C24_S28: a hold at one relay is a problem at those that have it as upstream, while it lasts.
func TestTroubleTravels_C24_S28(t *testing.T) {
	c := tellingRelays(t)
	const hold = "upstream files is held: deletion of 12 of 12 resources"
	c.empty(t)
	c.awaitTold(t, c.hub, "at east: "+hold)
	c.awaitTold(t, c.far, "at hub, at east: "+hold)
	for name, r := range map[string]running{"the first relay, which mirrors the hub": c.east, "a view of other sources": c.blind, "a view of other content": c.narrow} {
		if got := r.told(); got != nil {
			t.Errorf("%s is told %q", name, got)
		}
	}
	var stdout, stderr bytes.Buffer
	if code := execute([]string{"status", "--exit-code", "--admin", c.hub.admin}, &stdout, &stderr); code != 2 || !strings.Contains(stdout.String(), "- at east: upstream files is held") {
		t.Errorf("status ends with %d:\n%s%s", code, stdout.String(), stderr.String())
	}
	e, err := admin.Client{Address: c.far.admin}.Explain(t.Context(), "ServiceEntry", "shop", "e1")
	if err != nil || len(e.Sources) != 1 || len(e.Sources[0].Trouble) != 1 || !strings.HasPrefix(e.Sources[0].Trouble[0], "at hub, at east: "+hold) {
		t.Errorf("explained by %+v %v", e.Sources, err)
	}
	if e, err = (admin.Client{Address: c.far.admin}).Explain(t.Context(), "ServiceEntry", "home", "e0"); err != nil || len(e.Sources) != 1 || e.Sources[0].Trouble != nil {
		t.Errorf("what comes from elsewhere is explained by %+v %v", e.Sources, err)
	}
	for path, want := range map[string]string{
		"/metrics":          `relay_upstream_told_problems{upstream="hub"} 1`,
		"/ui/":              "at hub, at east: " + hold,
		"/ui/upstreams/hub": "at hub, at east: " + hold,
		"/debug/upstreams":  `"told"`,
	} {
		if body := page(t, "http://"+c.far.admin+path); !strings.Contains(body, want) {
			t.Errorf("%s has not %q:\n%s", path, want, body)
		}
	}
	c.fill(t)
	c.awaitTold(t, c.hub)
	c.awaitTold(t, c.far)
}

// TestTroubleEndsWithTheContact_C24: what a relay told that is gone is not shown as current. That it is gone is told.
func TestTroubleEndsWithTheContact_C24(t *testing.T) {
	c := tellingRelays(t)
	c.empty(t)
	c.awaitTold(t, c.far, "at hub, at east: upstream files is held: deletion of 12 of 12 resources")
	c.endEast()
	c.awaitTold(t, c.hub)
	c.awaitTold(t, c.far, "at hub: upstream east is disconnected")
}

func page(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url) //nolint:noctx // of this test
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(resp.Body); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
