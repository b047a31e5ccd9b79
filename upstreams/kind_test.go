package upstreams_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/config"
	"meshrelay/internal/errlist"
	"meshrelay/mirror"
	"meshrelay/upstreams"
	"meshrelay/upstreams/file"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
	"meshrelay/upstreams/xds"
)

// scriptedKind is a kind of source that only this test knows: what it brings is told over a
// channel.
type scriptedKind struct {
	upstreams.Plain
	tell chan []string // names of all ServiceEntries that there are
	ends chan struct{} // the contact ends
}

var scripted = scriptedKind{tell: make(chan []string), ends: make(chan struct{})}

// scriptedConfig is its section in the config file.
type scriptedConfig struct {
	Script  string          `yaml:"script" path:"file"`
	Pace    string          `yaml:"pace" default:"fast" oneof:"fast slow"`
	Timeout config.Duration `yaml:"timeout" default:"30s" range:"1s 1h"`
	Lines   []string        `yaml:"lines,omitempty"`
}

func (*scriptedConfig) Kind() string  { return "scripted" }
func (*scriptedConfig) Relayed() bool { return false }

func (c *scriptedConfig) Check(mistakes config.Checker, u config.Upstream, before []config.Upstream) {
	for i, other := range before {
		if o, ok := other.Source.(*scriptedConfig); ok && o.Script == c.Script {
			mistakes.Errorf("script", "upstream %s plays the script of upstreams[%d] (%q)", u.Name, i, other.Name)
		}
	}
}

// kinds are those of the upstreams of these tests.
func kinds() []upstreams.Kind {
	return []upstreams.Kind{xds.Kind(grpc.WithContextDialer(dial)), file.Kind(), {
		Config: &scriptedConfig{},
		New:    func(config.Upstream, upstreams.Env) (upstreams.Source, error) { return scripted, nil },
		Check: func(u config.Upstream) error {
			if u.ClusterID == "bad" {
				return errors.New("no such cluster")
			}
			return nil
		},
	}}
}

func parseScripted(text string) (*config.Config, error) {
	const downstream = "downstream: {listeners: [{address: '127.0.0.1:0', plaintext: true}]}\n"
	return config.Parse("/etc/relay.yaml", []byte(downstream+text), &xds.Config{}, &file.Config{}, &scriptedConfig{})
}

// TestAnotherKindOfSourceBringsItsSection: config knows nothing of it.
func TestAnotherKindOfSourceBringsItsSection(t *testing.T) {
	cfg, err := parseScripted("upstreams: [{name: east, scripted: {script: play.txt, lines: [a, b]}}, {name: west, file: {path: x}}]")
	if err != nil {
		t.Fatal(err)
	}
	want := &scriptedConfig{Script: "/etc/play.txt", Pace: "fast", Timeout: config.Duration(30 * time.Second), Lines: []string{"a", "b"}}
	if d := cmp.Diff(config.Source(want), cfg.Upstreams[0].Source); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	text, err := cfg.YAML()
	if err != nil || !strings.Contains(string(text), "scripted:\n    script: /etc/play.txt\n    pace: fast\n    timeout: 30s\n") {
		t.Errorf("%v\n%s", err, text)
	}
	again, err := config.Parse("relay.yaml", text, &scriptedConfig{}, &file.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(cfg, again); d != "" {
		t.Errorf("it does not read back: -want +got:\n%s", d)
	}
}

// TestMistakesInTheSectionOfAnotherKindHaveALine: as those in all other fields.
func TestMistakesInTheSectionOfAnotherKindHaveALine(t *testing.T) {
	_, err := parseScripted(`upstreams:
- name: one
  scripted:
    script: play.txt
    pace: medium
    timeout: 1ms
    lines: [a, ~]
    scirpt: x
- name: two
  scripted: {script: play.txt, timeout: soon}
- {name: three, scripted: {script: other.txt}, file: {path: x}}
- name: four
- {name: five, services: {mode: asIs}, scripted: {script: <FILE>}}
- {name: six, scripted: [a]}
- {name: seven, scriptde: {}, scripted: {script: seven.txt}}
`)
	want := []string{
		`6: upstreams[0].scripted.pace: "medium": want one of fast, slow`,
		`7: upstreams[0].scripted.timeout: 1ms is out of range: 1s to 1h0m0s`,
		`8: upstreams[0].scripted.lines[1]: empty: leave it out`,
		`9: upstreams[0].scripted.scirpt: unknown field: check its spelling and indentation; here it can be script, pace, timeout, lines`,
		`11: upstreams[1].scripted.timeout: want a duration like 90s, 5m or 250ms, not "soon"`,
		`11: upstreams[1].scripted.script: upstream two plays the script of upstreams[0] ("one")`,
		`12: upstreams[2]: upstream "three" needs exactly one of xds, file, scripted`,
		`13: upstreams[3]: upstream "four" needs exactly one of xds, file, scripted`,
		`14: upstreams[4].scripted.script: "<FILE>" is a placeholder: replace it by your own value, without the angle brackets`,
		`14: upstreams[4].services.mode: "asIs" is only for xds upstreams and API servers: a file has no Kubernetes services`,
		`15: upstreams[5].scripted: want a map of fields, not a list`,
		`16: upstreams[6].scriptde: unknown field: check its spelling and indentation; here it can be name, clusterID, domainSuffix, generated, import, services, rewrite, required, firstSync, staleness, guard, limits, xds, file, scripted`,
	}
	var got []string
	for _, e := range errlist.Split(err) {
		got = append(got, strings.TrimPrefix(e.Error(), "/etc/relay.yaml:"))
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// Run implements Source: all that there is to write for a new kind.
func (k scriptedKind) Run(ctx context.Context, feed upstreams.Feed) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.ends:
			feed.Tell(intake.Closed{})
		case names := <-k.tell:
			feed.Tell(intake.Received{Live: true, Updates: []records.Update{{
				Scope: records.KindScope(xdsEntryKind), Complete: true,
				Elements: records.Resources(entriesNamed(names)...),
			}}})
		}
	}
}

func entriesNamed(names []string) (out []*mirror.Resource) {
	for _, text := range names {
		name, version, _ := strings.Cut(text, "@")         // "n00@2": another content
		version, address, has := strings.Cut(version, "#") // "n00@2#10.0.0.1": with an endpoint
		se := &networking.ServiceEntry{Hosts: []string{name + version + ".example"}}
		if has {
			se.Ports, se.Resolution = []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}}, networking.ServiceEntry_STATIC
			se.Endpoints = []*networking.WorkloadEntry{{Address: address}}
		}
		body, err := anypb.New(se)
		if err != nil {
			panic(err)
		}
		r, err := mirror.New(mirror.Spec{Key: mirror.Key{Kind: xdsEntryKind, Namespace: "ns", Name: name}, Source: "scripted-east", Body: body})
		if err != nil {
			panic(err)
		}
		out = append(out, r)
	}
	return out
}

// TestAnotherKindOfSourceNeedsOneMethod: guard, freeze, rules, status and reload are there for it.
func TestAnotherKindOfSourceNeedsOneMethod(t *testing.T) {
	u := config.Upstream{Name: "scripted-east", ClusterID: "east", Guard: config.Guard{Percent: 30, Count: 1}, Source: &scriptedConfig{}}
	r := runManager(t, nil, u)
	if st := r.m.Status()[0]; st.Type != "scripted" || st.State != upstreams.StateConnecting || st.Synced {
		t.Errorf("before it has told anything: %+v", st)
	}
	scripted.tell <- []string{"a", "b", "c"}
	r.awaitServed("ns/a=a.example@scripted-east ns/b=b.example@scripted-east ns/c=c.example@scripted-east")
	r.await("it has synced", func() bool { return r.m.Status()[0].State == upstreams.StateSynced })
	scripted.tell <- []string{"a"}
	r.await("two of three are held", func() bool { h := r.m.Status()[0].Held; return h != nil && h.Removals == 2 })
	if err := errorOf(r.m.Order(t.Context(), u.Name, "release", intake.Order{All: true})); err != nil {
		t.Fatal(err)
	}
	r.awaitServed("ns/a=a.example@scripted-east")
	if err := errorOf(r.m.Order(t.Context(), u.Name, "freeze", intake.Order{})); err != nil {
		t.Fatal(err)
	}
	scripted.tell <- []string{"a", "d"}
	r.await("one waits", func() bool { return r.m.Status()[0].Frozen.Waiting == 1 })
	if err := errorOf(r.m.Order(t.Context(), u.Name, "unfreeze", intake.Order{})); err != nil {
		t.Fatal(err)
	}
	r.awaitServed("ns/a=a.example@scripted-east ns/d=d.example@scripted-east")
	u.Rewrite.NamePrefix = "p-"
	r.mustApply(u)
	r.awaitServed("ns/p-a=a.example@scripted-east ns/p-d=d.example@scripted-east")
	u.ClusterID = "bad"
	if err := r.apply(u); err == nil || !strings.Contains(err.Error(), "upstream scripted-east: no such cluster") {
		t.Errorf("a reload that its kind refuses: %v", err)
	}
	scripted.ends <- struct{}{}
	r.await("it is disconnected", func() bool { return r.m.Status()[0].State == upstreams.StateDisconnected })
}

// TestAnUpstreamNeedsAKnownKindOfSource: whatever has made the config.
func TestAnUpstreamNeedsAKnownKindOfSource(t *testing.T) {
	_, err := upstreams.NewManager(&config.Config{Upstreams: []config.Upstream{{Name: "east"}}}, kinds(), mirror.NewAggregate(), nil, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "upstream east") {
		t.Errorf("error %v", err)
	}
}
