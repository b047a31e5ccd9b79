package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestExampleDRMirror runs examples/dr-mirror and has the primary die, twice.
func TestExampleDRMirror(t *testing.T) {
	t.Parallel()
	x := newExample(t, "dr-mirror")
	primary := x.istiodAt("primary", "127.0.0.1:15110")
	x.give(primary, "primary")
	primary.start().ready()
	r := x.relay("relay.yaml").start().ready()
	dr := newIstiod(t, "dr", r.xds).start().ready()

	const (
		net     = "networking.istio.io/"
		cards   = net + "ServiceEntry payments/cards"
		carrier = net + "ServiceEntry shop/carrier"
	)
	keys := []string{
		net + "DestinationRule shop/web",
		net + "Gateway shop/public",
		cards,
		carrier,
		net + "VirtualService shop/web",
		"security.istio.io/AuthorizationPolicy payments/shop-only",
	}
	hasExactly := func(keys ...string) {
		t.Helper()
		eventually(t, "the DR istiod has exactly what is imported", func() error {
			if got := slices.Sorted(maps.Keys(dr.configs())); !slices.Equal(got, keys) {
				return fmt.Errorf("the keys are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(keys, "\n"))
			}
			return nil
		})
	}
	hasExactly(keys...)
	x.shows(t, "explain")
	x.shows(t, "get")

	eventually(t, "this is the first revision", func() error {
		out, err := x.command("history", "primary", "--admin", r.admin)
		if err == nil && !strings.Contains(out, "+se shop/carrier") {
			err = fmt.Errorf("the history is\n%s", out)
		}
		return err
	})

	want := dr.configs()
	c := dial(t, r.xds)
	var followers []*follower
	for _, kind := range []string{"ServiceEntry", "VirtualService", "DestinationRule", "Gateway"} {
		f := c.follow(net+"v1/"+kind, nil)
		f.mark()
		followers = append(followers, f)
	}
	events := func() string {
		var all []string
		for _, f := range followers {
			all = append(all, f.events())
		}
		return strings.Join(all, "|")
	}

	stop := watchFor(t, dr, want)
	primary.kill()
	t.Run("ThePrimaryDiesAndNothingGoes", func(t *testing.T) {
		x.showsAt(t, "status", 0)
		if lost := stop(); len(lost) > 0 {
			t.Errorf("lost while the primary was down: %v", lost)
		}
		if err := differs(r.configs(), want); err != nil {
			t.Errorf("the relay serves something else: %v", err)
		}
	})
	t.Run("AnIstiodThatStartsDuringTheOutageGetsEverything", func(t *testing.T) {
		dr.kill()
		dr.start().ready()
		eventually(t, "all is there", func() error { return differs(dr.configs(), want) })
	})
	if got := events(); got != "|||" {
		t.Errorf("during the outage clients were sent %q", got)
	}

	entry := func(namespace, name, host string) {
		t.Helper()
		text := strings.Replace(serviceEntry(name, host), "namespace: shop", "namespace: "+namespace, 1)
		writeFile(t, filepath.Join(primary.configDir, name+".yaml"), text)
	}
	t.Run("ThePrimaryReturnsAndOnlyDifferencesArePushed", func(t *testing.T) {
		entry("shop", "parcels", "parcels.example")
		entry("dev-bob", "trial", "trial.example")
		change(t, filepath.Join(primary.configDir, "shop.yaml"), "[cards.example]", "[cards-2.example]")
		primary.remove(t, "partners")
		primary.start().ready()
		hasExactly(keys[0], keys[1], cards, net+"ServiceEntry shop/parcels", keys[4], keys[5])
		dr.has(cards, "cards-2.example")
		if entries, want := followers[0].sent(3), []string{"+payments/cards", "+shop/parcels", "-shop/carrier"}; !slices.Equal(entries, want) {
			t.Errorf("ServiceEntries were sent as %v, want %v", entries, want)
		}
		if _, rest, _ := strings.Cut(events(), "|"); rest != "||" {
			t.Errorf("what is as it was came again: %s", rest)
		}
	})

	t.Run("TheRelayRestartsDuringTheOutageAndServesWhatItHad", func(t *testing.T) {
		want := dr.configs()
		stop := watchFor(t, dr, want)
		primary.kill()
		r.terminate()
		r.start().ready()
		x.showsAt(t, "status", 1)
		late := newIstiod(t, "late", r.xds).start().ready()
		eventually(t, "the istiod that is new has all", func() error { return differs(late.specs(), dr.specs()) })
		if lost := stop(); len(lost) > 0 {
			t.Errorf("lost: %v", lost)
		}
	})
	t.Run("ThePrimaryReturnsEmptyAndAPersonDecides", func(t *testing.T) {
		want := dr.configs()
		stop := watchFor(t, dr, want)
		for _, name := range []string{"shop", "parcels", "left-out", "trial"} {
			primary.remove(t, name)
		}
		primary.start().ready()
		x.showsAt(t, "status", 2)
		if lost := stop(); len(lost) > 0 {
			t.Errorf("lost: %v", lost)
		}
		var all []held
		if out := r.must(0, "upstreams --held -o json"); json.Unmarshal([]byte(out), &all) != nil || len(all) != 1 {
			t.Fatal(out)
		}
		x.ports["4kq3vx2a"] = all[0].ID
		x.shows(t, "upstreams --held")
		x.shows(t, "release")
		hasExactly()
		x.shows(t, "history")
		x.shows(t, "rollback")
		hasExactly(keys...)
	})
	t.Run("ARelayThatStartsWithoutStateDuringTheOutageLetsItsClientsWait", func(t *testing.T) {
		want := dr.configs()
		stop := watchFor(t, dr, want)
		primary.kill()
		r.kill()
		if err := os.RemoveAll(filepath.Join(x.dir, "state")); err != nil {
			t.Fatal(err)
		}
		r.start()
		eventually(t, "the DR istiod is back and waits", func() error {
			body, err := httpGet("http://" + r.admin + "/debug/connections")
			if err == nil && (!contains(body, "~dr.") || !contains(body, `"held":true`)) {
				err = fmt.Errorf("%s", body)
			}
			return err
		})
		if _, err := httpGet("http://" + r.admin + "/ready"); err == nil {
			t.Error("the relay reports that it is ready")
		}
		x.give(primary, "primary")
		primary.start().ready()
		r.ready()
		eventually(t, "the DR istiod has all", func() error { return differs(dr.specs(), specsOf(t, want)) })
		if lost := stop(); len(lost) > 0 {
			t.Errorf("lost: %v", lost)
		}
	})
}

// specs returns an istiod's configs without their metadata. The annotations that say which
// version the source has differ, when one istiod has been there for longer than another.
func (i *istiod) specs() configs {
	i.t.Helper()
	return specsOf(i.t, i.configs())
}

func specsOf(t *testing.T, of configs) configs {
	t.Helper()
	out := configs{}
	for key, c := range of {
		got, err := content(c)
		if err != nil {
			t.Fatal(err)
		}
		out[key] = got.spec
	}
	return out
}

// change replaces a part of a file.
func change(t *testing.T, path, from, to string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(b), from) {
		t.Fatalf("%s has no %s: %v", path, from, err)
	}
	writeFile(t, path, strings.ReplaceAll(string(b), from, to))
}
