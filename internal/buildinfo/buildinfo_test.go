package buildinfo

import (
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestBuilds(t *testing.T) {
	vcs := []debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.time", Value: "2024-01-01T00:00:00Z"}, {Key: "vcs.modified", Value: "true"}}
	here := Info{GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	with := func(f func(*Info)) Info { i := here; f(&i); return i }
	for name, tc := range map[string]struct {
		version string
		bi      *debug.BuildInfo
		want    Info
	}{
		"nothing known":         {"", nil, with(func(i *Info) { i.Version = "devel" })},
		"built here":            {"", &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, with(func(i *Info) { i.Version = "devel" })},
		"installed as a module": {"", &debug.BuildInfo{Main: debug.Module{Version: "v1.0.0"}}, with(func(i *Info) { i.Version = "v1.0.0" })},
		"release, dirty": {"v1.2.3", &debug.BuildInfo{Main: debug.Module{Version: "v1.0.0"}, Settings: vcs}, with(func(i *Info) {
			i.Version, i.Revision, i.CommitTime = "v1.2.3", "0123456789abcdef-dirty", "2024-01-01T00:00:00Z"
		})},
	} {
		if d := cmp.Diff(tc.want, from(tc.version, tc.bi)); d != "" {
			t.Errorf("%s: -want +got:\n%s", name, d)
		}
	}
	i := Info{Version: "v1.2.3", Revision: "0123456789abcdef", GoVersion: "go1.26.0", Platform: "linux/amd64"}
	if got, want := i.String(), "relay v1.2.3 (0123456789ab) go1.26.0 linux/amd64"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
