package records

import (
	"strings"
	"testing"

	"meshrelay/config"
	"meshrelay/federation"
	"meshrelay/mirror"
)

// TestWhatASinkWroteIsLeftOutByEveryKindOfSource: by the relay of the sink, and by those that the object passed before,
// also if another relay has read it from the cluster of the sink since.
func TestWhatASinkWroteIsLeftOutByEveryKindOfSource(t *testing.T) {
	written := func(label, relays string) *mirror.Resource {
		r := given(t, "shop/db", map[string]string{mirror.PathAnnotation: relays})
		md := r.Metadata()
		spec := mirror.Spec{Key: mirror.Key{Kind: federation.ServiceEntry, Namespace: "shop", Name: "db"}, Source: "east", Annotations: md.Annotations, Body: r.Body()}
		if label != "" {
			spec.Labels = map[string]string{mirror.SinkLabel: label}
		}
		r, err := mirror.New(spec)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for name, c := range map[string]struct {
		label, relays string
		left          bool
	}{
		"its own":                         {"dr", "hub", true},
		"of a relay that had it from hub": {"dr", "hub,far", true},
		"of another relay":                {"dr", "far", false},
		"of a relay of a similar name":    {"dr", "hub2,ahub", false},
		"without the label":               {"", "hub", false},
		"without a path":                  {"dr", "", false},
	} {
		for _, relay := range []bool{false, true} {
			for source, u := range map[string]config.Upstream{"a server": {}, "a file": {Source: aFile{}}} {
				im := imports(t, u, config.Provenance{})
				r := written(c.label, c.relays)
				if c.left {
					r = r.Stamped(im.stamp) // as a source does before the rules look
				}
				why := im.check(r, mirror.Way{}, relay, nil)
				if left := why != imported && why.Value().reason == reasonLoop && strings.Contains(why.Value().detail, "sink dr"); left != c.left {
					t.Errorf("%s, from %s, relay %v: left out: %v", name, source, relay, left)
				}
			}
		}
	}
}
