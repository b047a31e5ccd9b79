package downstream

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"meshrelay/downstream/snapshot"
	"meshrelay/downstream/subscription"
	"meshrelay/mirror"
)

var (
	leakWorlds = flag.Int("leak.worlds", 300, "worlds of TestViewsLeakNothing")
	leakSeed   = flag.Uint64("leak.seed", 1, "the seed of the worlds; 0: a random one")
	leakFirst  = flag.Uint64("leak.world", 0, "the first world")
)

// leakIn lives one world, and twins of it that differ in what one tenant does not see. It returns what that
// tenant, or another one, learns.
func leakIn(seed, number uint64, mutant leakMutant) (found string) {
	rng := rand.New(rand.NewPCG(seed, number))
	script := drawScript(rng)
	guests := rng.Perm(leakTenants)[:6]
	fixed := guests[0]
	transcripts, leaked := script.run(number, mutant, guests, []int{fixed}, fixed)
	if leaked != "" {
		return leaked
	}
	others := slices.DeleteFunc(rng.Perm(leakTenants)[:rng.IntN(6)], func(t int) bool { return t == fixed })
	twins, leaked := script.twin(rng, fixed).run(number, mutant, append(others, fixed), []int{fixed}, fixed)
	if leaked != "" {
		return "in the twin: " + leaked
	}
	for i, said := range transcripts[fixed] {
		if twin := twins[fixed][i]; said != twin {
			at := 0
			for at < min(len(said), len(twin)) && said[at] == twin[at] {
				at++
			}
			from := max(0, at-300)
			return "tenant " + canary('t', fixed) + " is sent something else where only what is hidden from it differs:\n" +
				quoted(said, from) + "\nand\n" + quoted(twin, from)
		}
	}
	return ""
}

func quoted(s string, from int) string { return fmt.Sprintf("%.700q", s[min(from, len(s)):]) }

// TestViewsLeakNothing: a client is sent nothing of what its view hides, and nothing that depends on it.
func TestViewsLeakNothing(t *testing.T) {
	seed := *leakSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	defer debug.SetGCPercent(debug.SetGCPercent(1000))
	t.Logf("%d worlds of the seed %d", *leakWorlds, seed)
	for n := range uint64(*leakWorlds) {
		if found := leakIn(seed, *leakFirst+n, leakMutant{}); found != "" {
			t.Fatalf("again with -run %s -leak.seed %d -leak.world %d -leak.worlds 1\n%s", t.Name(), seed, *leakFirst+n, found)
		}
	}
}

// leakyResources leaks: for a key with a copy that a view hides, the view gets what of makes of both.
type leakyResources struct {
	Resources
	of func(shown, hidden *mirror.Resource) *mirror.Resource
}

func (l leakyResources) Select(key mirror.Key, cluster string, accept func(*mirror.Resource) bool) *mirror.Resource {
	shown, everything := l.Resources.Select(key, cluster, accept), l.Get(key)
	if shown == nil || everything == nil || accept(everything) {
		return shown
	}
	return l.of(shown, everything)
}

// with returns r after a change of its Spec.
func with(r *mirror.Resource, change func(*mirror.Spec)) *mirror.Resource {
	spec := r.Spec()
	change(&spec)
	return must(mirror.New(spec))
}

// TestALeakIsFound: worlds in which views are made to leak one thing fail.
func TestALeakIsFound(t *testing.T) {
	resources := func(of func(shown, hidden *mirror.Resource) *mirror.Resource) leakMutant {
		return leakMutant{resources: func(r Resources) Resources { return leakyResources{r, of} }}
	}
	for name, mutant := range map[string]leakMutant{
		"a label": resources(func(shown, hidden *mirror.Resource) *mirror.Resource {
			return with(shown, func(s *mirror.Spec) {
				if own := hidden.Metadata().Labels["own"]; own != "" {
					s.Labels["also"] = own
				}
			})
		}),
		"an annotation that something is hidden": resources(func(shown, _ *mirror.Resource) *mirror.Resource {
			return with(shown, func(s *mirror.Spec) {
				if s.Annotations != nil {
					s.Annotations["shadows"] = "true"
				}
			})
		}),
		"a name": {accepts: func(accepts func(*mirror.Resource) bool) func(*mirror.Resource) bool {
			return func(r *mirror.Resource) bool {
				return accepts(r) || r.Kind() == kindVS && strings.HasSuffix(r.FullName(), "0q")
			}
		}},
		"an upstream": {accepts: func(accepts func(*mirror.Resource) bool) func(*mirror.Resource) bool {
			return func(r *mirror.Resource) bool { return accepts(r) || r.Source() == canary('s', 5) && r.Kind() == kindDR }
		}},
		"a version": {newest: func(w *leakWorld, of *view) func(subscription.Type) *snapshot.Snapshot {
			return func(t subscription.Type) *snapshot.Snapshot {
				was := of.snapshot(t)
				return &snapshot.Snapshot{
					Rev: was.Rev, Digest: was.Digest, Version: w.views.base.snapshot(t).Version, Count: was.Count, Bytes: was.Bytes, Pages: was.Pages, Log: was.Log, LogFrom: was.LogFrom,
				}
			}
		}},
		"that something has changed": {wakes: true},
	} {
		t.Run(name, func(t *testing.T) {
			for n := range uint64(300) {
				if found := leakIn(1, n, mutant); found != "" {
					t.Logf("found in world %d: %.300s", n, found)
					return
				}
			}
			t.Error("300 worlds show nothing")
		})
	}
}
