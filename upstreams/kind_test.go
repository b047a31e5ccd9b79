package upstreams_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/config"
	"meshrelay/mirror"
	"meshrelay/upstreams"
	"meshrelay/upstreams/file"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/xds"
)

// scriptedKind is a kind of source that only this test knows: what it brings is told over a
// channel.
type scriptedKind struct {
	tell chan []string // names of all ServiceEntries that there are
	ends chan struct{} // the contact ends
}

var scripted = scriptedKind{tell: make(chan []string), ends: make(chan struct{})}

const scriptedPrefix = "scripted-"

// kinds are those of the upstreams of these tests.
func kinds() []upstreams.Kind {
	return []upstreams.Kind{file.Kind(), xds.Kind(), {
		Name: "scripted",
		Has:  func(u config.Upstream) bool { return strings.HasPrefix(u.Name, scriptedPrefix) },
		New:  func(config.Upstream, upstreams.Env) (upstreams.Source, error) { return scripted, nil },
		Check: func(u config.Upstream) error {
			if u.ClusterID == "bad" {
				return errors.New("no such cluster")
			}
			return nil
		},
	}}
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
			feed.Tell(intake.Received{Live: true, Updates: []intake.Update{{
				Scope: intake.KindScope(xdsEntryKind), Complete: true,
				Elements: intake.Resources(entriesNamed(names)...),
			}}})
		}
	}
}

func entriesNamed(names []string) (out []*mirror.Resource) {
	for _, name := range names {
		body, err := anypb.New(&networking.ServiceEntry{Hosts: []string{name + ".example"}})
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
	u := config.Upstream{Name: "scripted-east", ClusterID: "east", Guard: config.Guard{Percent: 30, Count: 1}}
	r := runManager(t, nil, u)
	if st := r.m.Status()[0]; st.Type != "scripted" || st.State != upstreams.StateConnecting || st.Synced {
		t.Errorf("before it has told anything: %+v", st)
	}
	scripted.tell <- []string{"a", "b", "c"}
	r.awaitServed("ns/a=a.example@scripted-east ns/b=b.example@scripted-east ns/c=c.example@scripted-east")
	r.await("it has synced", func() bool { return r.m.Status()[0].State == upstreams.StateSynced })
	scripted.tell <- []string{"a"}
	r.await("two of three are held", func() bool { h := r.m.Status()[0].Held; return h != nil && h.Removals == 2 })
	if err := errorOf(r.m.Release(t.Context(), u.Name, upstreams.Order{All: true})); err != nil {
		t.Fatal(err)
	}
	r.awaitServed("ns/a=a.example@scripted-east")
	if err := errorOf(r.m.Freeze(t.Context(), u.Name, upstreams.Order{})); err != nil {
		t.Fatal(err)
	}
	scripted.tell <- []string{"a", "d"}
	r.await("one waits", func() bool { return r.m.Status()[0].Frozen.Waiting == 1 })
	if err := errorOf(r.m.Unfreeze(t.Context(), u.Name, upstreams.Order{})); err != nil {
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
