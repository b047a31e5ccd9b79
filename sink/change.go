package sink

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"meshrelay/config"
	"meshrelay/internal/text"
	"meshrelay/mirror"
)

// maxPolicies is how many policies that would go are named.
const maxPolicies = 20

// Change is what another config would change for a sink.
type Change struct {
	Sink    string   `json:"sink"`
	Changed []string `json:"changed"` // fields of the sink and of its view, or "added" or "removed"
	// Now and Planned count the present resources that it is to write, Gained those that it has to write anew or with other
	// content, and Lost those that it does not want any more.
	Now     int      `json:"now"`
	Planned int      `json:"planned"`
	Gained  int      `json:"gained"`
	Lost    int      `json:"lost"`
	Notes   []string `json:"notes,omitempty"` // what becomes of the objects, and what to do
}

// Compare returns what Apply would change, sorted by name. It reads all resources twice for each sink that differs.
func (s *Set) Compare(specs []Spec) (changes []Change) {
	s.mu.Lock()
	now, next := s.specs, byName(specs)
	s.mu.Unlock()
	both := maps.Clone(next)
	maps.Copy(both, now)
	for _, name := range slices.Sorted(maps.Keys(both)) {
		before, after := now[name], next[name]
		before.Same, after.Same = nil, nil // they are about the upstreams
		if before.same(after) {
			continue
		}
		was, is := written(s.deps.Resources, before.Accepts), written(s.deps.Resources, after.Accepts)
		c := Change{Sink: name, Changed: []string{"added"}, Now: len(was), Planned: len(is)}
		for key, version := range is {
			if was[key] != version {
				c.Gained++
			}
			delete(was, key)
		}
		c.Lost = len(was)
		if after.Name == "" {
			c.Changed, c.Notes = []string{"removed"}, []string{leaves(before, now, next)}
		} else if before.Name != "" {
			c.Changed, c.Notes = differing(before, after), notes(before, after, was)
		}
		changes = append(changes, c)
	}
	return changes
}

// written returns the versions of the resources that a sink with a view is to write. Nil shows nothing.
func written(all Resources, accepts func(*mirror.Resource) bool) map[mirror.Key]string {
	versions := map[mirror.Key]string{}
	for _, kind := range all.SourceKinds() {
		for _, key := range all.Keys(kind) {
			r := all.Select(key, "", func(r *mirror.Resource) bool { return accepts != nil && accepts(r) })
			if r != nil && excluded(r) == "" {
				versions[key] = r.Version()
			}
		}
	}
	return versions
}

// differing returns the fields of a sink and of its view that differ.
func differing(before, after Spec) []string {
	before.Show.Name, after.Show.Name = "", ""
	a := &config.Config{Views: []config.View{before.Show}, Sinks: []config.Sink{before.Sink}}
	b := &config.Config{Views: []config.View{after.Show}, Sinks: []config.Sink{after.Sink}}
	all := strings.Join(config.Changes(a, b), "\n")
	return strings.Split(strings.NewReplacer("sinks["+after.Name+"].", "", "views[].", "view.").Replace(all), "\n")
}

func sameServer(a, b Spec) bool {
	return a.Cluster.Kubeconfig == b.Cluster.Kubeconfig && a.Cluster.Context == b.Cluster.Context
}

// leaves tells what becomes of the objects of a sink that leaves the config.
func leaves(s Spec, now, next map[string]Spec) string {
	for _, name := range slices.Sorted(maps.Keys(next)) {
		if now[name].Name == "" && sameServer(s, next[name]) {
			return fmt.Sprintf("it leaves, and %s comes for the same cluster: its objects keep its label, and are foreign to %[1]s. Before the change, run relay sink promote %s --yes, and relay sink disown %[2]s --yes: then adopt: true of %[1]s takes them over", name, s.Name)
		}
	}
	return fmt.Sprintf("its objects stay in the cluster. If they shall go, give it a view that shows nothing, and run relay sink prune %s --yes, before it leaves", s.Name)
}

// notes tells what other fields do to the objects of a sink.
func notes(before, after Spec, gone map[mirror.Key]string) (lines []string) {
	tell := func(is bool, format string, args ...any) {
		if is {
			lines = append(lines, fmt.Sprintf(format, args...))
		}
	}
	var policies []string
	for key := range gone {
		if key.Kind.Protects() {
			policies = append(policies, key.String())
		}
	}
	slices.Sort(policies)
	lost := len(gone)
	name, mode, applies := after.Name, before.Mode != after.Mode, after.Mode == config.SinkApply
	prunes := applies && after.Prune
	tell(len(policies) > 0 && prunes, "it deletes policies, without which something may be open: %s", text.Some(policies, maxPolicies))
	tell(!sameServer(before, after), "if this is another cluster, its objects stay in the present one, and it writes nothing until clusterUID names the other")
	tell(mode && applies, "it begins to write: before the change, relay sink diff %s shows what", name)
	tell(mode && !applies, "it writes and deletes nothing from now on, and its objects stay")
	tell(prunes && !before.Prune, "what its view does not show is deleted from now on, or held by the guard: before the change, relay sink diff %s --do left shows it", name)
	tell(lost > 0 && prunes, "what its view does not show any more (%d) is deleted, or held by the guard: relay sink %s", lost, name)
	tell(lost > 0 && !prunes, "what its view does not show any more (%d) stays in the cluster", lost)
	return lines
}
