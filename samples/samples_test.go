// Package samples has no code: it checks that the samples beside it are what the
// product takes.
package samples

import (
	"testing"

	"meshrelay/config"
	"meshrelay/mirror"
	"meshrelay/relay"
	"meshrelay/upstreams/file"
)

func TestSampleConfigsLoad(t *testing.T) {
	for name, upstreams := range map[string]int{"east.yaml": 1, "west.yaml": 1, "relay.yaml": 2} {
		c, err := config.Check(name, relay.Sources()...)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(c.Upstreams) != upstreams {
			t.Errorf("%s has %d upstreams, want %d", name, len(c.Upstreams), upstreams)
		}
	}
}

func TestSamplesCoverEveryKindAndShareOneKey(t *testing.T) {
	inEast := map[mirror.Key]bool{}
	shared := 0
	for _, dir := range []string{"east", "west"} {
		resources, problems, err := file.Read(dir, dir, false)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s: %s", dir, p.Resource, p.Reason)
		}
		have := map[mirror.Kind]bool{}
		for _, r := range resources {
			have[r.Kind()] = true
			if dir == "east" {
				inEast[r.Key()] = true
			} else if inEast[r.Key()] && r.Kind() != mirror.MeshConfig {
				shared++
			}
			if r.Metadata().CreateTime.IsZero() && r.Kind() != mirror.MeshConfig {
				t.Errorf("%s: %s has no creation time", dir, r.Key())
			}
		}
		for _, info := range mirror.Kinds() {
			if !have[info.Kind] {
				t.Errorf("%s has no %s", dir, info.Kind)
			}
		}
	}
	if shared != 1 {
		t.Errorf("east and west share %d keys besides MeshConfig, want 1", shared)
	}
}
