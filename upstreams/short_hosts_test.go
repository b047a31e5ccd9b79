package upstreams_test

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/config"
	"meshrelay/federation/rewrite"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
)

var ruleKind = mirror.Kind{Group: "networking.istio.io", Kind: "DestinationRule"}

// destinationRule is a rule of the source for a host, in the namespace shop.
func destinationRule(t testing.TB, name, host string) *mirror.Resource {
	t.Helper()
	body, err := anypb.New(&networking.DestinationRule{Host: host})
	if err != nil {
		t.Fatal(err)
	}
	r, err := mirror.New(mirror.Spec{Key: mirror.Key{Kind: ruleKind, Namespace: "shop", Name: name}, Source: "east", Body: body})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func ruleHost(t testing.TB, r *mirror.Resource) string {
	t.Helper()
	var rule networking.DestinationRule
	if err := proto.Unmarshal(r.BodyValue(), &rule); err != nil {
		t.Fatal(err)
	}
	return rule.Host
}

// TestWhatIsOnDiskFromBeforeIsCompleted_C23: a relay that did not complete short hosts has
// left them in its state, and no upstream is in contact.
func TestWhatIsOnDiskFromBeforeIsCompleted_C23(t *testing.T) {
	xds, _ := xdsConfig("127.0.0.1:1")
	for name, u := range map[string]config.Upstream{"xds": xds, "file": fileUpstream("east", filepath.Join(t.TempDir(), "not there"))} {
		t.Run(name, func(t *testing.T) {
			u.DomainSuffix, u.Rewrite.ShortHosts = "east.corp", rewrite.ShortHostsComplete
			_, node := xdsConfig()
			cfg := &config.Config{Node: node, Upstreams: []config.Upstream{u}}
			restart := func(saved state.Saved) *upstreams.Upstream {
				t.Helper()
				m, err := upstreams.NewManager(cfg, kinds(), mirror.NewAggregate(), &memoryKeeper{saved: map[string]state.Saved{u.Name: saved}}, slog.New(slog.DiscardHandler))
				if err != nil {
					t.Fatal(err)
				}
				m.Restore(t.Context())
				return m.Upstreams()[0]
			}
			short, long := destinationRule(t, "short", "reviews"), destinationRule(t, "long", "details.shop.svc.cluster.local")
			saved := state.Saved{
				Meta: state.Meta{Synced: true, LastContact: time.Now(), Fingerprint: "of a build before"},
				Records: []state.Record{
					{Resource: short, TypeURL: "networking.istio.io/v1/DestinationRule", At: time.Now()},
					{Resource: long, TypeURL: "networking.istio.io/v1/DestinationRule", At: time.Now()},
				},
			}
			one := restart(saved)
			if got := ruleHost(t, one.Store().Get(short.Key())); got != "reviews.shop.svc.east.corp" {
				t.Errorf("served is the host %q", got)
			}
			if got := one.Store().Get(long.Key()); got != long {
				t.Errorf("what has a full host is not the very resource that was kept: %q", ruleHost(t, got))
			}

			changes, meta := one.TakeChanges()
			if len(changes) != 1 || changes[0].Key != short.Key() || changes[0].Record.Original == nil || ruleHost(t, changes[0].Record.Original) != "reviews" {
				t.Fatalf("%d changes go to disk: want the one rule, with what the source has", len(changes))
			}
			saved.Meta.Fingerprint, saved.Records[0] = meta.Fingerprint, *changes[0].Record
			one = restart(saved)
			if got := one.Store().Get(short.Key()); got != changes[0].Record.Resource {
				t.Errorf("the next start imports it once more: %q", ruleHost(t, got))
			}
		})
	}
}

// TestWhatIsFrozenStaysShortUntilItIsUnfrozen_C23: a freeze keeps what is served as it is,
// also through an upgrade.
func TestWhatIsFrozenStaysShortUntilItIsUnfrozen_C23(t *testing.T) {
	u, node := xdsConfig("127.0.0.1:1")
	u.DomainSuffix, u.Rewrite.ShortHosts = "cluster.local", rewrite.ShortHostsComplete
	short := destinationRule(t, "short", "reviews")
	saved := state.Saved{
		Meta: state.Meta{
			Synced: true, LastContact: time.Now(), Frozen: &state.Frozen{Since: time.Now()},
			Fingerprint: "of a build before",
		},
		Records: []state.Record{{Resource: short, TypeURL: "networking.istio.io/v1/DestinationRule", At: time.Now()}},
	}
	m, err := upstreams.NewManager(&config.Config{Node: node, Upstreams: []config.Upstream{u}}, kinds(), mirror.NewAggregate(), &memoryKeeper{saved: map[string]state.Saved{u.Name: saved}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	m.Restore(t.Context())
	one := m.Upstreams()[0]
	if got := ruleHost(t, one.Store().Get(short.Key())); got != "reviews" {
		t.Errorf("while it is frozen, served is the host %q", got)
	}
	if err := errorOf(m.Order(t.Context(), u.Name, "unfreeze", intake.Order{Force: true})); err != nil {
		t.Fatal(err)
	}
	if got := ruleHost(t, one.Store().Get(short.Key())); got != "reviews.shop.svc.cluster.local" {
		t.Errorf("unfrozen, served is the host %q", got)
	}
}

func TestTheFingerprintCoversWhatShortHostsDependOn_C23(t *testing.T) {
	prints := map[string]string{}
	for name, change := range map[string]func(*config.Upstream){
		"as it is":       func(*config.Upstream) {},
		"another domain": func(u *config.Upstream) { u.DomainSuffix = "east.corp" },
		"kept":           func(u *config.Upstream) { u.Rewrite.ShortHosts = rewrite.ShortHostsKeep },
	} {
		u, _ := xdsConfig()
		u.DomainSuffix, u.Rewrite.ShortHosts = "cluster.local", rewrite.ShortHostsComplete
		change(&u)
		rules, err := records.NewRules(u, config.Provenance{}, true)
		if err != nil {
			t.Fatal(err)
		}
		f := rules.Version()
		if other := prints[f]; other != "" {
			t.Errorf("%q and %q have one fingerprint", name, other)
		}
		prints[f] = name
	}
}
