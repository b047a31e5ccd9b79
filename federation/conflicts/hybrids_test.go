package conflicts

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
	"pgregory.net/rapid"

	"meshrelay/federation"
	"meshrelay/mirror"
)

// part returns a resource of a kind that claims a host: "se", "dr" or "vs" of namespace a.
func part(t testing.TB, kind, source, name, host string, exportTo ...string) *mirror.Resource {
	var body proto.Message
	of := map[string]mirror.Kind{"se": federation.ServiceEntry, "dr": federation.DestinationRule, "vs": federation.VirtualService}[kind]
	switch kind {
	case "se":
		body = &networking.ServiceEntry{Hosts: []string{host}, ExportTo: exportTo, Ports: []*networking.ServicePort{{Number: 1, Name: "a"}}}
	case "dr":
		body = &networking.DestinationRule{Host: host, ExportTo: exportTo}
	default:
		body = &networking.VirtualService{Hosts: []string{host}, ExportTo: exportTo}
	}
	return build(t, of, "a", name, source, body)
}

// hybrids returns the hybrids once all is merged, one in a line.
func (w *world) hybrids() (out []string) {
	w.t.Helper()
	if err := w.resources.CaughtUp(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	for _, h := range w.Hybrids() {
		s := h.Host
		for _, p := range h.Parts {
			s += fmt.Sprintf(" %s/%s@%s", p.Kind.Kind, p.Name, p.Source)
		}
		if h.More > 0 {
			s += fmt.Sprint(" +", h.More)
		}
		out = append(out, s)
	}
	return out
}

func TestHostsWhosePartsComeFromDifferentUpstreamsAreNamed(t *testing.T) {
	const bank = "api.bank.example"
	for name, tc := range map[string]struct {
		owners string
		parts  []*mirror.Resource
		want   []string
	}{
		"entry and rules":     {parts: []*mirror.Resource{part(t, "se", "east", "x", bank), part(t, "dr", "west", "x", bank)}, want: []string{bank + " ServiceEntry/x@east DestinationRule/x@west"}},
		"entry and routes":    {parts: []*mirror.Resource{part(t, "se", "east", "x", bank), part(t, "vs", "west", "y", bank)}, want: []string{bank + " ServiceEntry/x@east VirtualService/y@west"}},
		"one upstream":        {parts: []*mirror.Resource{part(t, "se", "east", "x", bank), part(t, "dr", "east", "x", bank), part(t, "vs", "east", "x", bank)}},
		"one kind":            {parts: []*mirror.Resource{part(t, "se", "east", "x", bank), part(t, "se", "west", "y", bank)}},
		"other hosts":         {parts: []*mirror.Resource{part(t, "se", "east", "x", bank), part(t, "dr", "west", "x", "b.example")}},
		"any host":            {parts: []*mirror.Resource{part(t, "vs", "east", "x", "*"), part(t, "dr", "west", "x", "*")}},
		"a shadowed copy":     {parts: []*mirror.Resource{part(t, "se", "east", "x", bank), part(t, "dr", "east", "x", bank), part(t, "dr", "west", "x", bank)}},
		"seen by others":      {parts: []*mirror.Resource{part(t, "se", "east", "x", bank, "b"), part(t, "dr", "west", "x", bank, "c")}},
		"seen by one":         {parts: []*mirror.Resource{part(t, "se", "east", "x", bank, "b", "c"), part(t, "dr", "west", "x", bank, "c", "d")}, want: []string{bank + " ServiceEntry/x@east DestinationRule/x@west"}},
		"seen by all and b":   {parts: []*mirror.Resource{part(t, "se", "east", "x", bank), part(t, "dr", "west", "x", bank, "b")}, want: []string{bank + " ServiceEntry/x@east DestinationRule/x@west"}},
		"only who see both":   {parts: []*mirror.Resource{part(t, "se", "east", "x", bank, "b"), part(t, "dr", "west", "x", bank, "b"), part(t, "dr", "west", "y", bank, "c")}, want: []string{bank + " ServiceEntry/x@east DestinationRule/x@west"}},
		"a host of the first": {owners: "first", parts: []*mirror.Resource{part(t, "se", "east", "x", bank), part(t, "dr", "west", "x", bank)}},
	} {
		w := newWorld(t, tc.owners, "east", "west")
		w.put(tc.parts...)
		if got := w.hybrids(); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
		w.remove(tc.parts...)
		if got := w.hybrids(); len(got) > 0 {
			t.Errorf("%s: %q of nothing", name, got)
		}
	}
}

// TestPartsOfAHybridAreBoundedAndOfEachKindAndUpstream.
func TestPartsOfAHybridAreBoundedAndOfEachKindAndUpstream(t *testing.T) {
	w := newWorld(t, "serve", "east", "west")
	for i := range 2 * maxShown {
		w.put(part(t, "se", "east", fmt.Sprintf("x%03d", i), "a.example"))
	}
	w.put(part(t, "dr", "west", "z", "a.example"), part(t, "vs", "west", "z", "a.example"))
	if err := w.resources.CaughtUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	all := w.Hybrids()
	if len(all) != 1 || len(all[0].Parts) != maxShown || all[0].More != maxShown+2 {
		t.Fatalf("%+v", all)
	}
	if p := all[0].Parts; p[0].Name != "x000" || p[1].Source != "west" || p[2].Source != "west" || p[1].Kind == p[2].Kind {
		t.Errorf("%+v", p[:3])
	}
}

// TestHybridsAgreeWithAModel: the index has them after any changes.
func TestHybridsAgreeWithAModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := failer{t: rt}
		w, have := newWorld(t, "serve", "east", "west"), map[string]*mirror.Resource{}
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			kind := rapid.SampledFrom([]string{"se", "dr", "vs"}).Draw(rt, "kind")
			source := rapid.SampledFrom([]string{"east", "west"}).Draw(rt, "source")
			id := kind + source
			if rapid.Bool().Draw(rt, "put") {
				scope := rapid.SampledFrom([][]string{nil, {"b"}, {"c"}}).Draw(rt, "exportTo")
				have[id] = part(f, kind, source, source, rapid.SampledFrom([]string{"1.x", "2.x"}).Draw(rt, "host"), scope...)
				w.put(have[id])
			} else if have[id] != nil {
				w.remove(have[id])
				delete(have, id)
			}
			want := map[string]bool{}
			for _, a := range have {
				for _, b := range have {
					one, two := federation.Claims(a, "x")[0], federation.Claims(b, "x")[0]
					v, u := federation.VisibilityOf(federation.ExportTo(a), "a"), federation.VisibilityOf(federation.ExportTo(b), "a")
					if one == two && a.Source() != b.Source() && a.Kind() != b.Kind() && (v.Public || u.Public || slices.Equal(v.Namespaces, u.Namespaces)) {
						want[one] = true
					}
				}
			}
			got := w.hybrids()
			if len(got) != len(want) || slices.ContainsFunc(got, func(s string) bool { return !want[s[:3]] }) {
				rt.Fatalf("got %q, want %v", got, want)
			}
		}
	})
}

// TestManyPartsThatNobodySeesTogetherAreNoHybrid: comparing each with each would end long before all are compared.
func TestManyPartsThatNobodySeesTogetherAreNoHybrid(t *testing.T) {
	w := newWorld(t, "serve", "east", "west")
	for i := range 600 {
		w.put(part(t, "se", "east", fmt.Sprintf("x%03d", i), "a.example", "b"))
	}
	w.put(part(t, "dr", "west", "z", "a.example", "c"))
	if got := w.hybrids(); len(got) > 0 {
		t.Errorf("%.200q", got)
	}
}
