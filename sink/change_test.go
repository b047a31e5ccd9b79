package sink

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"meshrelay/config"
	"meshrelay/mirror"
)

func TestAPlanCountsWhatASinkWouldWriteAndNotWantAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for _, name := range []string{"a", "b", "c"} {
			w.put("east", name, name+".x")
		}
		w.put("west", "c", "other.x")
		w.put("east", "synthetic-web", "web.shop.svc.cluster.local") // never written
		synctest.Wait()
		showing := func(source string, names ...string) func(*Spec) {
			return func(s *Spec) {
				s.Show.Namespaces.Include = names // so that it differs
				s.Accepts = func(r *mirror.Resource) bool {
					return r.Source() == source && (slices.Contains(names, r.Key().Name) || r.Key().Name == "synthetic-web")
				}
			}
		}

		prune := func(s *Spec) { s.Prune = true }
		dry := func(s *Spec) { s.Mode = "dryRun" }
		other := func(s *Spec) { s.Name, s.Adopt = "site", true }
		for name, c := range map[string]struct {
			now, next []func(*Spec) // nil: no sink
			want      Change
			notes     string // a part of each, in order
		}{
			"the same":            {now: []func(*Spec){prune}, next: []func(*Spec){prune}},
			"other upstreams":     {now: []func(*Spec){}, next: []func(*Spec){func(s *Spec) { s.Same = []string{"east"} }}},
			"added":               {next: []func(*Spec){showing("east", "a", "b")}, want: Change{Changed: []string{"added"}, Planned: 2, Gained: 2}},
			"removed":             {now: []func(*Spec){showing("east", "a", "b")}, want: Change{Changed: []string{"removed"}, Now: 2, Lost: 2}, notes: "run relay sink prune dr --yes, before it leaves"},
			"wider":               {[]func(*Spec){showing("east", "a")}, []func(*Spec){showing("east", "a", "b", "c")}, Change{Changed: []string{"view.namespaces.include"}, Now: 1, Planned: 3, Gained: 2}, ""},
			"narrower":            {[]func(*Spec){showing("east", "a", "b", "c")}, []func(*Spec){showing("east", "c")}, Change{Changed: []string{"view.namespaces.include"}, Now: 3, Planned: 1, Lost: 2}, "what its view does not show any more (2) stays"},
			"narrower, and prune": {[]func(*Spec){prune, showing("east", "a", "b")}, []func(*Spec){prune, showing("east")}, Change{Changed: []string{"view.namespaces.include"}, Now: 2, Lost: 2}, "(2) is deleted, or held by the guard: relay sink dr"},
			"narrower, dry":       {[]func(*Spec){dry, prune, showing("east", "a", "b")}, []func(*Spec){dry, prune, showing("east", "a")}, Change{Changed: []string{"view.namespaces.include"}, Now: 2, Planned: 1, Lost: 1}, "(1) stays"},
			"another copy":        {[]func(*Spec){showing("east", "a", "c")}, []func(*Spec){showing("west", "c")}, Change{Changed: []string{"view.namespaces.include"}, Now: 2, Planned: 1, Gained: 1, Lost: 1}, "(1) stays"},
			"another view": {
				[]func(*Spec){showing("east", "a")}, []func(*Spec){showing("east", "a"), func(s *Spec) { s.View, s.Show.Name, s.Show.Kinds = "few", "few", []string{"se"} }},
				Change{Changed: []string{"view.kinds", "view"}, Now: 1, Planned: 1}, "",
			},
			"begins to write": {[]func(*Spec){dry}, []func(*Spec){}, Change{Changed: []string{"mode"}, Now: 3, Planned: 3}, "relay sink diff dr shows what"},
			"writes no more":  {[]func(*Spec){}, []func(*Spec){dry}, Change{Changed: []string{"mode"}, Now: 3, Planned: 3}, "it writes and deletes nothing"},
			"begins to prune": {[]func(*Spec){}, []func(*Spec){prune}, Change{Changed: []string{"prune"}, Now: 3, Planned: 3}, "relay sink diff dr --do left"},
			"takes conflicts": {[]func(*Spec){}, []func(*Spec){func(s *Spec) { s.Conflicts = config.ConflictsTake }}, Change{Changed: []string{"conflicts"}, Now: 3, Planned: 3}, ""},
			"another context": {[]func(*Spec){}, []func(*Spec){func(s *Spec) { s.Cluster.Context = "b" }}, Change{Changed: []string{"cluster.context"}, Now: 3, Planned: 3}, "until clusterUID names the other"},
			"renamed": {
				[]func(*Spec){}, []func(*Spec){other}, Change{Changed: []string{"removed"}, Now: 3, Lost: 3},
				"site comes for the same cluster: its objects keep its label, and are foreign to site. Before the change, run relay sink promote dr --yes, and relay sink disown dr --yes: then adopt: true of site takes them over",
			},
			"another one elsewhere": {
				[]func(*Spec){}, []func(*Spec){other, func(s *Spec) { s.Cluster.Kubeconfig = "elsewhere" }}, Change{Changed: []string{"removed"}, Now: 3, Lost: 3},
				"its objects stay in the cluster",
			},
		} {
			specs := func(changes []func(*Spec)) []Spec {
				if changes == nil {
					return nil
				}
				s := w.spec
				s.Show.Name = s.View
				for _, f := range changes {
					f(&s)
				}
				return []Spec{s}
			}
			sinks := New(w.deps)
			sinks.Apply(specs(c.now))
			got := sinks.Compare(specs(c.next))
			if c.want.Changed == nil {
				if len(got) > 0 {
					t.Errorf("%s: %+v", name, got)
				}
				continue
			}
			c.want.Sink = "dr"
			i := slices.IndexFunc(got, func(c Change) bool { return c.Sink == "dr" })
			if i < 0 {
				t.Errorf("%s: %+v", name, got)
				continue
			}
			notes := strings.Join(got[i].Notes, "\n")
			got[i].Notes = nil
			if d := cmp.Diff(c.want, got[i]); d != "" || !strings.Contains(notes, c.notes) || (notes == "") != (c.notes == "") {
				t.Errorf("%s: notes %q, -want +got:\n%s", name, notes, d)
			}
		}
	})
}

func TestAPlanNamesThePoliciesThatASinkWouldDelete(t *testing.T) {
	policy := mirror.Key{Kind: mirror.Kind{Group: "security.istio.io", Kind: "AuthorizationPolicy"}, Namespace: "bank", Name: "deny"}
	gone := map[mirror.Key]string{policy: "1", {Kind: mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}, Namespace: "bank", Name: "a"}: "1"}
	for prune, want := range map[bool]string{
		true:  "it deletes policies, without which something may be open: security.istio.io/AuthorizationPolicy bank/deny",
		false: "what its view does not show any more (2) stays in the cluster",
	} {
		s := Spec{Sink: config.Sink{Name: "dr", Mode: config.SinkApply, Prune: prune}}
		if lines := notes(s, s, gone); lines[0] != want {
			t.Errorf("prune %v: %q", prune, lines)
		}
	}
}
