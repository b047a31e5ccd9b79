package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestExampleFourIstiods runs examples/four-istiods with four istiods, of them d is also a client,
// and a fifth that reads nothing but the relay.
func TestExampleFourIstiods(t *testing.T) {
	t.Parallel()
	x := newExample(t, "four-istiods")
	a, b, c := x.istiodAt("a", "127.0.0.1:15110"), x.istiodAt("b", "127.0.0.1:15210"), x.istiodAt("c", "127.0.0.1:15310")
	d := x.istiodAt("d", "127.0.0.1:15410", x.address("127.0.0.1:15011"))
	for _, i := range []*istiod{a, b, c, d} {
		x.give(i, "clusters/"+i.name)
	}
	for _, i := range []*istiod{a, b, c} {
		i.start().ready()
	}
	r := x.relay("relay.yaml").start()
	d.start().ready()
	r.ready()
	fifth := newIstiod(t, "fifth", r.xds).start().ready()

	const (
		net  = "networking.istio.io/"
		db   = net + "ServiceEntry shop/db"
		web  = net + "VirtualService shop/web"
		rule = net + "DestinationRule shop/db"
	)
	// The served resources, and the upstream of each.
	merge := map[string]string{
		db:                                  "a",
		rule:                                "a",
		web:                                 "a",
		net + "ServiceEntry search/index":   "b",
		net + "ServiceEntry payments/cards": "c",
		"security.istio.io/AuthorizationPolicy payments/checkout-only": "c",
		net + "ServiceEntry reports/cards":                             "d",
		net + "ServiceEntry reports/warehouse":                         "d",
	}
	byName := map[string]*istiod{"a": a, "b": b, "c": c, "d": d}
	endpoints := `"endpoints":[{"address":"10.1.0.10","locality":"north/a"},{"address":"10.2.0.10","locality":"south/a"}]`
	check := func(have configs, keys []string) error {
		if got := slices.Sorted(maps.Keys(have)); !slices.Equal(got, keys) {
			return fmt.Errorf("the keys are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(keys, "\n"))
		}
		for _, key := range keys {
			got, err := content(have[key])
			if err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
			if of, err := content(r.configs()[key]); err != nil || of.source != merge[key] {
				return fmt.Errorf("%s is from %q, want %q: %w", key, of.source, merge[key], err)
			}
			if key == db {
				if !strings.Contains(got.spec, endpoints) {
					return fmt.Errorf("%s is not the union: %s", key, got.spec)
				}
				continue
			}
			want, err := content(byName[merge[key]].configs()[key])
			if err != nil {
				return fmt.Errorf("%s of %s: %w", key, merge[key], err)
			}
			if got.spec != want.spec {
				return fmt.Errorf("%s is\n%s\nwant\n%s", key, got.spec, want.spec)
			}
		}
		return nil
	}
	all := slices.Sorted(maps.Keys(merge))
	eventually(t, "the fifth istiod has exactly the merge", func() error { return check(fifth.configs(), all) })
	if web := fifth.configs()[web]; !strings.Contains(web, `"subset":"v1"`) {
		t.Errorf("not a's routes are served: %s", web)
	}

	// d has its own as it was, with what the relay leaves out too, and the others' beside it.
	eventually(t, "istiod d has the others' configs", func() error {
		have := d.configs()
		for key := range merge {
			if have[key] == "" {
				return fmt.Errorf("%s is not there", key)
			}
		}
		entries, err := dial(t, d.grpc).list(seV1alpha3)
		for name, entry := range entries {
			from := merge[net+"ServiceEntry "+name]
			if relayed := marked.MatchString(entry.Metadata.Version); from != "" && relayed != (from != "d") {
				return fmt.Errorf("%s of %s has the version %q", name, from, entry.Metadata.Version)
			}
		}
		return err
	})
	d.has(net+"ServiceEntry ops/alerts", "alerts.ops.example")

	t.Run("README", func(t *testing.T) {
		for _, words := range []string{"validate", "status", "get", "explain", "conflicts", "plan"} {
			x.shows(t, words)
		}
	})

	t.Run("Istioctl", func(t *testing.T) {
		wantIstioctlAnswered(t, x.address("127.0.0.1:15010"))
		wantIstioctlRefused(t, x.address("127.0.0.1:15011"))
	})

	t.Run("DIsNotSentItsOwn", func(t *testing.T) {
		sent, err := dial(t, x.address("127.0.0.1:15011")).list(seV1)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := slices.Sorted(maps.Keys(sent)), []string{"payments/cards", "search/index", "shop/db"}; !slices.Equal(got, want) {
			t.Errorf("d is sent %v, want %v", got, want)
		}
	})

	t.Run("ChangesOfEachArrive", func(t *testing.T) {
		for name, namespace := range map[string]string{"a": "shop", "b": "search", "c": "new", "d": "reports"} {
			i := byName[name]
			entry := func(namespace, name, host string) {
				text := strings.Replace(serviceEntry(name, host), "namespace: shop", "namespace: "+namespace, 1)
				writeFile(t, filepath.Join(i.configDir, namespace+"-"+name+".yaml"), text)
			}
			key := net + "ServiceEntry " + namespace + "/from-" + name
			entry("x-sandbox", "from-"+name, "sandbox.example")
			entry(namespace, "from-"+name, "first."+name+".example")
			fifth.has(key, "first."+name+".example")
			entry(namespace, "from-"+name, "second."+name+".example")
			fifth.has(key, "second."+name+".example")
			i.remove(t, namespace+"-from-"+name)
			fifth.loses(key)
			// It came before what has come and gone.
			fifth.hasNot(net + "ServiceEntry x-sandbox/from-" + name)
		}
		eventually(t, "all is as it was", func() error { return check(fifth.configs(), all) })
	})

	t.Run("TheNextTakesOver", func(t *testing.T) {
		a.remove(t, "shop")
		fifth.has(web, `"subset":"v2"`)
		eventually(t, "b's database alone is left", func() error {
			if c := fifth.configs()[db]; !strings.Contains(c, "10.2.0.10") || strings.Contains(c, "10.1.0.10") {
				return fmt.Errorf("it is %s", c)
			}
			return nil
		})
		fifth.loses(rule)
	})
}

// contents are a config's spec, and the upstream from which a relay has it.
type contents struct{ spec, source string }

func content(config string) (contents, error) {
	if config == "" {
		return contents{}, fmt.Errorf("it is not there")
	}
	var o struct {
		Annotations map[string]string
		Spec        json.RawMessage
	}
	err := json.Unmarshal([]byte(config), &o)
	source, _, _ := strings.Cut(o.Annotations["meshrelay.io/from"], "@")
	source, _, _ = strings.Cut(source, " via ")
	return contents{spec: string(o.Spec), source: source}, err
}
