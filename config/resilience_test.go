package config_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"meshrelay/config"
)

func TestSettingsOutOfRangeAreErrorsWithTheirLine(t *testing.T) {
	long := "/" + strings.Repeat("s", config.MaxSocketPath)
	for _, tc := range []struct {
		name, in string
		want     []string
	}{
		{"first sync", "  firstSync: never\n", []string{
			`7: upstreams[0].firstSync: "never": want one of auto, wait, optional`,
		}},
		{"staleness", "  staleness: {staleAfter: 1ms, expireAfter: -1h}\n", []string{
			"7: upstreams[0].staleness.staleAfter: 1ms is out of range: 1s to 8760h0m0s",
			"7: upstreams[0].staleness.expireAfter: -1h0m0s is out of range: 1s to 87600h0m0s, or never"}},
		{"expires before it is stale", "  staleness:\n    expireAfter: 1m\n", []string{
			"8: upstreams[0].staleness.expireAfter: 1m0s is less than staleAfter, which is 5m0s: set both, or write never"}},
		{"an end that is no duration", "  staleness:\n    expireAfter: 0s\n  guard:\n    holdFor: soon\n", []string{
			`8: upstreams[0].staleness.expireAfter: want a duration like 90s, 5m or 1h, or never, or forever, not "0s"`,
			`10: upstreams[0].guard.holdFor: want a duration like 90s, 5m or 1h, or never, or forever, not "soon"`}},
		{"no end where there must be one", "  staleness: {staleAfter: never}\n", []string{
			`7: upstreams[0].staleness.staleAfter: want a duration like 90s, 5m or 250ms, not "never"`}},
		{"a registry", "  guard: {profile: nacos}\n", []string{`7: upstreams[0].guard.profile: "nacos": want one of registry`}},
		{"guard", "  guard: {percent: 101, count: -1, holdFor: 1ms}\n", []string{
			"7: upstreams[0].guard.percent: 101 is out of range: 0 to 100",
			"7: upstreams[0].guard.count: -1 is out of range: 0 to",
			"7: upstreams[0].guard.holdFor: 1ms is out of range: 1s to 8760h0m0s, or forever"}},
		{"limits", "  limits: {maxResources: 0, maxBytes: 0}\n", []string{
			"7: upstreams[0].limits.maxResources: 0 is out of range: 1 to",
			"7: upstreams[0].limits.maxBytes: 0 is out of range: 1 to"}},
		{"state", "state: {dir: x, history: {revisions: 10001, maxBytes: 0}}\n", []string{
			"7: state.history.revisions: 10001 is out of range: 0 to 10000",
			"7: state.history.maxBytes: 0 is out of range: 1024 to"}},
		{"socket", "admin:\n  socket: " + long + "\n", []string{
			"8: admin.socket: " + long + " is 108 bytes long, and a Unix socket can have 107 at most: choose a shorter path"}},
		{"socket that is no file", "admin: {socket: /}\n", []string{"7: admin.socket: / is not the name of a file"}},
	} {
		t.Run(tc.name, func(t *testing.T) { wantMistakes(t, withUpstream+tc.in, tc.want) })
	}
	wantMistakes(t, strings.Replace(withUpstream, "tls: {}", "tls: {}, resyncInterval: 10ms", 1), []string{
		"6: upstreams[0].xds.resyncInterval: 10ms is out of range: 1s to 24h0m0s"})
	for field, bounds := range map[string][2]int{
		"maxStreams": {1, 1_000_000},
	} {
		for n, ok := range map[int]bool{bounds[0] - 1: false, bounds[0]: true, bounds[1]: true, bounds[1] + 1: false} {
			in := strings.Replace(withUpstream, "downstream:", fmt.Sprintf("downstream:\n  %s: %d", field, n), 1)
			if ok {
				if _, err := parse("relay.yaml", []byte(in)); err != nil {
					t.Error(err)
				}
				continue
			}
			wantMistakes(t, in, []string{fmt.Sprintf("2: downstream.%s: %d is out of range: %d to %d", field, n, bounds[0], bounds[1])})
		}
	}
}

func TestDurationsWithoutEnd(t *testing.T) {
	c, err := parse("relay.yaml", []byte(withUpstream+`  guard: {holdFor: forever}
  staleness:
    expireAfter: 1h
`))
	if err != nil {
		t.Fatal(err)
	}
	u := c.Upstreams[0]
	if u.Guard.HoldFor != 0 || u.Staleness.ExpireAfter.D() != time.Hour {
		t.Errorf("%+v %+v", u.Guard, u.Staleness)
	}
	// The effective config has never where there is no end, and reads back.
	out, err := c.YAML()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), "holdFor: never") {
		t.Errorf("%s", out)
	}
	again, err := parse("relay.yaml", out)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if d := cmp.Diff(c, again); d != "" {
		t.Error(d)
	}
}

func FuzzOpenEnded(f *testing.F) {
	for _, s := range []string{"never", "forever", "1h", "-5m", "0", `"1h"`, "[1h]"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var o config.OpenEnded
		if err := o.UnmarshalText(data); err != nil {
			return
		}
		text, err := o.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		var again config.OpenEnded
		if err := again.UnmarshalText(text); err != nil || again != o {
			t.Errorf("%q: %v, written as %q, is read as %v (%v)", data, o, text, again, err)
		}
	})
}

// TestListsThatAreWrittenAndEmptyAreRefused: a missing list means all, which may be the opposite
// of the intention.
func TestListsThatAreWrittenAndEmptyAreRefused(t *testing.T) {
	const text = "empty: leave it out to mean all, or name at least one"
	for _, tc := range []struct{ in, want string }{
		{"  import: {namespaces: {include: []}}\n", "7: upstreams[0].import.namespaces.include: " + text},
		{"views: [{name: a, default: true, sources: []}]\n", "7: views[0].sources: " + text},
		{"views: [{name: a, default: true, kinds: []}]\n", "7: views[0].kinds: " + text},
		{"views: [{name: a, default: true, namespaces: {include: []}}]\n", "7: views[0].namespaces.include: " + text},
		{"views: [{name: a, match: {nodeIDs: []}}]\n", "7: views[0].match.nodeIDs: " + text},
		{"views: [{name: a, match: {clusterIDs: [], nodeIDs: [x]}}]\n", "7: views[0].match.clusterIDs: " + text},
		{"views: [{name: a, match: {namespaces: []}}]\n", "7: views[0].match.namespaces: " + text},
		{"views: [{name: a, match: {identities: []}}]\n", "7: views[0].match.identities: " + text},
		{"merge: [{kinds: [], policy: newest}]\n", "7: merge[0].kinds: empty: leave it out to mean all other kinds, or name at least one kind"},
	} {
		wantMistakes(t, withUpstream+tc.in, []string{tc.want})
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[config.Import]()) {
		if name := config.YAMLName(field); field.Type.Kind() == reflect.Slice {
			wantMistakes(t, fmt.Sprintf("%s  import: {%s: []}\n", withUpstream, name), []string{fmt.Sprintf("7: upstreams[0].import.%s: %s", name, text)})
		}
	}
}

func TestTheRelaysOwnAnnotationsCanNotBeMadeUp(t *testing.T) {
	const in = "  rewrite:\n    annotations:\n      set:\n        a: b\n        meshrelay.io/from: me\n        meshrelay.io/hops: now\n"
	wantMistakes(t, withUpstream+in, []string{
		"11: upstreams[0].rewrite.annotations.set[meshrelay.io/from]: only relays set annotations that begin with meshrelay.io/",
		"12: upstreams[0].rewrite.annotations.set[meshrelay.io/hops]: only relays set annotations that begin with meshrelay.io/"})
	if _, err := parse("relay.yaml", []byte(withUpstream+"  rewrite: {annotations: {set: {meshrelay.io: x}}, labels: {set: {meshrelay.io/from: x}}}\n")); err != nil {
		t.Error(err)
	}
}

func TestMapsOfTextsCanBeMerged(t *testing.T) {
	c, err := parse("relay.yaml", []byte(withUpstream+`  rewrite:
    labels: {set: &common {team: mesh, tier: "1"}}
    annotations:
      set:
        <<: *common
        tier: "2"
`))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]string{"team": "mesh", "tier": "2"}, c.Upstreams[0].Rewrite.Annotations.Set); d != "" {
		t.Error(d)
	}
	wantMistakes(t, withUpstream+"  rewrite: {labels: {set: {<<: *nobody}}}\n", []string{"7: upstreams[0].rewrite.labels.set: there is no anchor &nobody above"})
	wantMistakes(t, withUpstream+"  clusterID: &c x\n  rewrite: {labels: {set: {<<: *c}}}\n", []string{`8: upstreams[0].rewrite.labels.set: want a map, not "x"`})
}

func TestWhereTheAdminSocketIs(t *testing.T) {
	run, tmp, uid := t.TempDir(), t.TempDir(), os.Getuid()
	long := "/" + strings.Repeat("d", 100)
	for _, tc := range []struct {
		name, in, runtimeDir, tempDir, want string
	}{
		{"as configured", "admin: {socket: /x/a.sock}\nstate: {dir: /s}\n", run, tmp, "/x/a.sock"},
		{"relative to the file", "admin: {socket: run/a.sock}\n", run, tmp, "/etc/relay/run/a.sock"},
		{"with the state", "state: {dir: state}\n", run, tmp, "/etc/relay/state/admin.sock"},
		{"with the state, too long", "state: {dir: " + long + "}\n", run, tmp, run + "/meshrelay/admin-15014.sock"},
		{"of the user's session", "", run, tmp, run + "/meshrelay/admin-15014.sock"},
		{"of another port", "admin: {address: '127.0.0.1:1234'}\n", run, tmp, run + "/meshrelay/admin-1234.sock"},
		{"of any port", "admin: {address: '127.0.0.1:0'}\n", run, tmp, fmt.Sprintf("%s/meshrelay/admin-pid-%d.sock", run, os.Getpid())},
		{"without a session", "", "", tmp, fmt.Sprintf("%s/meshrelay-%d/admin-15014.sock", tmp, uid)},
		{"a session that is nowhere", "", "relative", tmp, fmt.Sprintf("%s/meshrelay-%d/admin-15014.sock", tmp, uid)},
		{"all too long", "", long, long, fmt.Sprintf("/tmp/meshrelay-%d/admin-15014.sock", uid)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv("XDG_RUNTIME_DIR", tc.runtimeDir)
			t.Setenv("TMPDIR", tc.tempDir)
			c, err := parse("/etc/relay/relay.yaml", []byte(withUpstream+tc.in))
			if err != nil {
				t.Fatal(err)
			}
			if got := c.AdminSocket(); got != tc.want || !filepath.IsAbs(got) || len(got) > config.MaxSocketPath {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
	// However the file is named, others find the socket.
	c, err := parse("relay.yaml", []byte(withUpstream+"state: {dir: s}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got := c.AdminSocket(); !filepath.IsAbs(got) || filepath.Base(filepath.Dir(got)) != "s" {
		t.Error(got)
	}
}

func TestWhatNeedsARestart(t *testing.T) {
	base := withUpstream + "  clusterID: a\n"
	for _, tc := range []struct {
		name, from, to string
		want           []string
	}{
		{"nothing", "", "", nil},
		{"upstreams", "clusterID: a", "clusterID: b\n  firstSync: wait\n  guard: {percent: 1}\n- {name: f, file: {path: x}}", nil},
		{"merge, views, level, limits, history", "", "merge: [{policy: newest}]\nviews: [{name: a, default: true}]\nlog: {level: debug}\nstate: {history: {revisions: 1}}\n", nil},
		{"hot limits", "downstream:", "downstream:\n  maxStreams: 5", nil},
		{"node", "", "node: {id: other, clusterID: r}\n", []string{"node.id", "node.clusterID", "provenance.relay"}},
		{"a listener's address", "127.0.0.1:15010", "127.0.0.1:15011", []string{"downstream.listeners[0].address"}},
		{"a listener's kind", "plaintext: true", "allowAnonymous: true, tls: {certFile: a, keyFile: b}", []string{"downstream.listeners[0].plaintext", "downstream.listeners[0].allowAnonymous", "downstream.listeners[0].tls"}},
		{"a listener more", "upstreams:", "  - {address: '127.0.0.1:0', plaintext: true}\nupstreams:", []string{"downstream.listeners"}},
		{"times", "downstream:", "downstream:\n  startupTimeout: 1s", []string{"downstream.startupTimeout"}},
		{"the rest", "", "admin: {address: '127.0.0.1:1', socket: /x/y}\nstate: {dir: /s}\nprovenance: {relay: a}\nlog: {format: json}\n", []string{
			"provenance.relay", "admin.address", "admin.socket", "state.dir", "log.format"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := base + tc.to
			if tc.from != "" {
				in = strings.Replace(base, tc.from, tc.to, 1)
				if in == base {
					t.Fatalf("%q is not there", tc.from)
				}
			}
			running, err := parse("relay.yaml", []byte(base))
			if err != nil {
				t.Fatal(err)
			}
			next, err := parse("relay.yaml", []byte(in))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tc.want, config.Diff(running, next)); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
			if d := cmp.Diff(tc.want, config.Diff(next, running)); d != "" {
				t.Errorf("the other way round, -want +got:\n%s", d)
			}
		})
	}
	for _, f := range config.RestartOnly {
		known := fieldPaths("", reflect.TypeFor[config.Config]())
		found := false
		for _, k := range known {
			found = found || k == f
		}
		if !found {
			t.Errorf("%s is no field", f)
		}
	}
}

func TestFirstSyncIsAutoUnlessTheFileSaysOtherwise(t *testing.T) {
	for line, want := range map[string]string{"": config.FirstSyncAuto, "  firstSync: wait\n": config.FirstSyncWait, "  firstSync: optional\n": config.FirstSyncOptional, "  firstSync: auto\n": config.FirstSyncAuto} {
		c, err := parse("relay.yaml", []byte(withUpstream+line))
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Upstreams[0].FirstSync; got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}

// TestLimitsOfClientsFollowFromTheMemoryOfTheProcess: 10,000 streams fit in 1 GiB, and a relay without a
// limit takes twice as many.
func TestLimitsOfClientsFollowFromTheMemoryOfTheProcess(t *testing.T) {
	const tenths = 9 // of what the control group allows
	for limit, want := range map[int64]config.Downstream{
		64 << 20:                {MaxStreams: 1000, MaxRequestBytes: 4 << 20},
		512 << 20 / 10 * tenths: {MaxStreams: 3276, MaxRequestBytes: 512 << 20 / 10 * tenths / 96},
		1 << 30 / 10 * tenths:   {MaxStreams: 10649, MaxRequestBytes: 1 << 30 / 10 * tenths / 96},
		4 << 30:                 {MaxStreams: 20_000, MaxRequestBytes: 32 << 20},
		math.MaxInt64:           {MaxStreams: 20_000, MaxRequestBytes: 32 << 20},
		0:                       {MaxStreams: 20_000, MaxRequestBytes: 32 << 20},
	} {
		c, err := parse("relay.yaml", []byte(withUpstream))
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second time changes nothing
			c.FitMemory(limit)
		}
		got := c.Downstream
		got = config.Downstream{MaxStreams: got.MaxStreams, MaxRequestBytes: got.MaxRequestBytes}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("with %d bytes: %+v, want %+v", limit, got, want)
		}
	}
	c, err := parse("relay.yaml", []byte(strings.Replace(withUpstream, "downstream:", "downstream:\n  maxStreams: 8000", 1)))
	if err != nil {
		t.Fatal(err)
	}
	c.FitMemory(1 << 29)
	if d := c.Downstream; d.MaxStreams != 8000 || d.MaxRequestBytes != 1<<29/96 {
		t.Errorf("%+v", d)
	}
}

// TestLimitsFollowFromTheMemoryOfTheProcess: a response has an eighth, and what is held of all
// upstreams half; what the config sets stays.
func TestLimitsFollowFromTheMemoryOfTheProcess(t *testing.T) {
	in := withUpstream + "- {name: b, file: {path: x}}\n- {name: c, file: {path: x}, limits: {maxBytes: 5}}\n- {name: d, xds: {addresses: [\"d:1\"], tls: {}}}\n"
	for limit, want := range map[int64][2]int{
		512 << 20:     {64 << 20, 64 << 20}, // half, in four shares
		math.MaxInt64: {256 << 20, 256 << 20},
		0:             {256 << 20, 256 << 20},
		1 << 40:       {1 << 37, 1<<31 - 1},
		1:             {1, 1},
	} {
		c, err := parse("relay.yaml", []byte(in))
		if err != nil {
			t.Fatal(err)
		}
		c.FitMemory(limit)
		all, response := want[0], want[1]
		for i, l := range []config.Limits{
			{MaxBytes: all, MaxResponseBytes: response}, {MaxBytes: all, MaxResponseBytes: response},
			{MaxBytes: 5, MaxResponseBytes: response}, {MaxBytes: all, MaxResponseBytes: response},
		} {
			if got := c.Upstreams[i].Limits; got.MaxBytes != l.MaxBytes || got.MaxResponseBytes != l.MaxResponseBytes {
				t.Errorf("with %d bytes upstream %d has %+v, want %+v", limit, i, got, l)
			}
		}
		out, err := c.YAML()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parse("relay.yaml", out); err != nil {
			t.Errorf("read back: %v", err)
		}
	}
	wantMistakes(t, withUpstream+"- {name: b, file: {path: x}, limits: {maxBytes: 0}}\n", []string{"7: upstreams[1].limits.maxBytes: 0 is out of range: 1 to "})
}
