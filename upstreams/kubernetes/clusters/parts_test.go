package clusters

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"meshrelay/internal/testing/collecting"
	"meshrelay/upstreams/kubernetes/clusters/registry"
)

const twoParts = "- {name: fleet, secrets: {cluster: {kubeconfig: hub}}}\n- {name: more, secrets: {cluster: {kubeconfig: hub}, namespace: more}}"

// of returns the clusters of each part, as "PART: ID STATE".
func (f *found) of() (all []string) {
	for _, st := range f.Status() {
		for _, c := range st.Clusters {
			all = append(all, fmt.Sprint(st.Name, ": ", c.ID, " ", c.State))
		}
	}
	return all
}

func TestAClusterThatIsFollowedStaysWithItsPart(t *testing.T) {
	h, dir := newHub(t), t.TempDir()
	h.secretIn("more", "two", map[string][]byte{"east": h.kubeconfig("e")})
	f := finds(t, "", h.parse(dir, twoParts))
	f.has("east found")
	before := f.upstreams()
	h.secret("one", map[string][]byte{"east": h.kubeconfig("e2"), "west": h.kubeconfig("w")})
	f.has("west found", "east found")
	if got := f.of(); !slices.Equal(got, []string{"fleet: west found", "more: east found"}) {
		t.Errorf("%q", got)
	}
	if after := f.upstreams(); !reflect.DeepEqual(after["east"], before["east"]) {
		t.Error("its upstream has changed")
	}
	if text := fmt.Sprint(f.Problems()); !strings.Contains(text, "clusters fleet: east in secret istio-system/one is not followed: clusters more follows that cluster already, from secret more/two") {
		t.Errorf("the conflict is not named: %s", text)
	}
	h.secretIn("more", "two", nil)
	f.has("west found", "east orphaned")
	if err := f.Remove("more", "east"); err != nil {
		t.Fatal(err)
	}
	if got := f.of(); !slices.Equal(got, []string{"fleet: east found", "fleet: west found"}) {
		t.Errorf("nobody else follows it at once: %q", got)
	}
}

// A part that has a cluster no more, by another config, may come after the one that has found it too.
func TestAClusterThatALaterPartIgnoresIsFreeInTheSameStep(t *testing.T) {
	f, told := offline(t, twoParts)
	told("more", nil, "east")
	told("fleet", nil, "east")
	if got := f.of(); !slices.Equal(got, []string{"fleet: east found"}) {
		t.Fatalf("%q", got)
	}
	f, told = offline(t, twoParts)
	told("fleet", nil)
	told("more", nil, "east")
	told("fleet", nil, "east")
	f.mu.Lock()
	cfg := *f.Finder.cfg
	cfg.Clusters = slices.Clone(cfg.Clusters)
	cfg.Clusters[1].Ignore = []string{"east"}
	f.Finder.cfg = &cfg
	f.policies()
	f.mu.Unlock()
	if got := f.of(); !slices.Equal(got, []string{"fleet: east found"}) {
		t.Errorf("%q", got)
	}
}

// A cluster whose part leaves the config, or leaves the cluster out, is another part's in the same step
// if that has found it. Nothing of it is removed, and where the templates are alike, nothing changes.
func TestAClusterOfAPartThatGoesIsThatOfAnotherPartThatHasIt(t *testing.T) {
	for name, parts := range map[string]string{
		"the part goes":                         "- {name: more, secrets: {cluster: {kubeconfig: hub}, namespace: more}}",
		"the part leaves it out":                strings.Replace(twoParts, "hub}}", "hub}}, ignore: [east, west]", 1),
		"the part goes, and another one is new": "- {name: new, secrets: {cluster: {kubeconfig: hub}, namespace: new}}\n- {name: more, secrets: {cluster: {kubeconfig: hub}, namespace: more}}",
	} {
		t.Run(name, func(t *testing.T) {
			f, told := offline(t, twoParts)
			told("fleet", nil, "east", "west")
			told("more", nil, "east")
			before := f.upstreams()
			if got := f.of(); !slices.Equal(got, []string{"fleet: east found", "fleet: west found"}) {
				t.Fatalf("%q", got)
			}
			f.cfg = f.parse(filepath.Dir(f.Finder.cfg.Clusters[1].Secrets.Cluster.Kubeconfig), parts)
			for _, when := range []string{"before it is adopted", "after that"} {
				if after := f.upstreams(); len(after) != 1 || !reflect.DeepEqual(after["east"], before["east"]) {
					t.Errorf("%s: %+v", when, after)
				}
				if when == "before it is adopted" {
					if got := f.of(); !slices.Equal(got, []string{"fleet: east found", "fleet: west found"}) {
						t.Errorf("a config that is only looked at has an effect: %q", got)
					}
					f.Adopt(f.cfg)
				}
			}
			if got := f.of(); !slices.Equal(got, []string{"more: east found"}) {
				t.Errorf("%q", got)
			}
			last := f.parts[len(f.parts)-1].registry.Clusters()[0]
			if last.Origin != "more east" || len(last.Kubeconfig) == 0 {
				t.Errorf("it has not the kubeconfig of its part: %+v", last)
			}
		})
	}
}

// Another way to read a part may bring other clusters: what it had found by the former one does not count.
func TestWhatWasReadInAnotherWayTakesNoCluster(t *testing.T) {
	f, told := offline(t, twoParts)
	told("fleet", nil, "east")
	told("more", nil, "east")
	f.Adopt(f.parse(t.TempDir(), "- {name: more, secrets: {cluster: {kubeconfig: hub}, namespace: elsewhere}}"))
	if got := f.of(); len(got) > 0 {
		t.Errorf("%q", got)
	}
}

// Which part has a new cluster is for the order of the config to tell.
func TestNewClustersWaitUntilThePartsBeforeHaveAnswered(t *testing.T) {
	for name, err := range map[string]error{"read": nil, "not readable": errors.New("down")} {
		t.Run(name, func(t *testing.T) {
			f, told := offline(t, twoParts)
			told("more", nil, "east", "west")
			if got := f.of(); len(got) > 0 {
				t.Errorf("before the first part has answered: %q", got)
			}
			want := []string{"fleet: east found", "more: west found"}
			if err != nil {
				told("fleet", err)
				want = []string{"more: east found", "more: west found"}
			} else {
				told("fleet", nil, "east")
			}
			if got := f.of(); !slices.Equal(got, want) {
				t.Errorf("%q", got)
			}
		})
	}
	// What is known waits for nobody: it has its kubeconfig at once.
	f, told := offline(t, twoParts)
	f.mu.Lock()
	_, _ = f.step(f.parts[1], registry.Restored{Clusters: []registry.Cluster{{ID: "east", Name: "east", State: registry.Found}}})
	f.mu.Unlock()
	told("more", nil, "east", "west")
	if all := f.parts[1].registry.Clusters(); len(all) != 1 || all[0].ID != "east" || len(all[0].Kubeconfig) == 0 {
		t.Errorf("%+v", all)
	}
}

// offline returns a Finder that reads nothing, and what tells it of a part that it has clusters, or
// that it can not be read.
func offline(t *testing.T, parts string) (f *found, told func(name string, err error, ids ...string)) {
	t.Helper()
	h, dir := newHub(t), t.TempDir()
	f = &found{t: t, cfg: h.parse(dir, parts), parse: h.parse}
	f.Finder, _ = New("", slog.New(slog.DiscardHandler))
	f.pace = quick
	f.Adopt(f.cfg)
	return f, func(name string, err error, ids ...string) {
		t.Helper()
		p := f.parts[slices.IndexFunc(f.parts, func(p *part) bool { return p.cfg.Name == name })]
		p.stop = func() {}
		var entries []registry.Entry
		for _, id := range ids {
			entries = append(entries, registry.Entry{ID: id, Origin: name + " " + id, Kubeconfig: h.kubeconfig(id)})
		}
		f.told(p, p.reading, entries, err)
	}
}

// TestMetricsOfClustersAreSentWithoutTheLock: what is found does not wait for the reader of metrics.
func TestMetricsOfClustersAreSentWithoutTheLock(t *testing.T) {
	f, told := offline(t, twoParts)
	collecting.Unlocked(t, f, func() { told("fleet", nil, "east") })
}
