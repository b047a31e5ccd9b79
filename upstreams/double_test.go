package upstreams_test

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"meshrelay/config"
	"meshrelay/upstreams"
	"meshrelay/upstreams/file"
	"meshrelay/upstreams/intake"
)

// ofCluster is a source that knows the UID of its cluster.
type ofCluster struct {
	upstreams.Source
	uid string
}

func (s ofCluster) Run(ctx context.Context, feed upstreams.Feed) error {
	feed.Tell(intake.Identified{Identity: s.uid})
	return s.Source.Run(ctx, feed)
}

// TestAClusterUnderTwoIDsCountsOnce: the first upstream that reads it counts, as those of the config come before found
// ones. Two upstreams with one ID may read different kinds.
func TestAClusterUnderTwoIDsCountsOnce(t *testing.T) {
	uids := map[string]string{"west-old": "u1", "west": "u1", "west-gateways": "u1", "east": "u2", "files": ""}
	kind := file.Kind()
	of := kind.New
	kind.New = func(u config.Upstream, env upstreams.Env) (upstreams.Source, error) {
		s, err := of(u, env)
		return ofCluster{s, uids[u.Name]}, err
	}
	all := map[string]config.Upstream{}
	for name, id := range map[string]string{"west-old": "west-old", "west": "west", "west-gateways": "west", "east": "east", "files": "files"} {
		path := filepath.Join(t.TempDir(), "a.yaml")
		if err := os.WriteFile(path, []byte(serviceEntry(name, name+".x")), 0o600); err != nil {
			t.Fatal(err)
		}
		u := fileUpstream(name, path)
		u.ClusterID = id
		all[name] = u
	}
	pick := func(names ...string) (picked []config.Upstream) {
		for _, name := range names {
			picked = append(picked, all[name])
		}
		return picked
	}
	_, node := xdsConfig()
	var mu sync.Mutex
	var same map[string]string
	r := runKinds(t, []upstreams.Kind{kind}, nil, &config.Config{Node: node, Upstreams: pick("west", "west-gateways", "west-old", "east", "files")}, slog.New(slog.DiscardHandler), func(m *upstreams.Manager) {
		m.OnSame(func(ids map[string]string) {
			mu.Lock()
			defer mu.Unlock()
			same = maps.Clone(ids)
		})
	})
	counts := func(want, left string, ids map[string]string) {
		t.Helper()
		r.await("those that count are "+want, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return r.served() == want && maps.Equal(same, ids)
		})
		for _, st := range r.m.Status() {
			if (st.Double != "") != (st.Name == left) || st.Name == left && !strings.Contains(st.Double, "reads the same cluster (uid of kube-system u1)") {
				t.Errorf("%s: %q", st.Name, st.Double)
			}
		}
	}
	counts("shop/east=east.x@east shop/files=files.x@files shop/west=west.x@west shop/west-gateways=west-gateways.x@west-gateways", "west-old", map[string]string{"west-old": "west"})
	r.mustApply(pick("west-old", "west", "east")...)
	counts("shop/east=east.x@east shop/west-old=west-old.x@west-old", "west", map[string]string{"west": "west-old"})
	r.mustApply(pick("west", "east")...)
	counts("shop/east=east.x@east shop/west=west.x@west", "", map[string]string{})
}
