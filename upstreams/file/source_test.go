package file

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"meshrelay/config"
	"meshrelay/internal/testing/await"
	"meshrelay/mirror"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake/records"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fileSource is an upstream of files that runs, and the events of what is served of it.
type fileSource struct {
	*upstreams.Manager
	t      *testing.T
	store  *mirror.Aggregate
	events chan string
}

func startFile(t *testing.T, path string) *fileSource {
	t.Helper()
	s := &fileSource{t: t, store: mirror.NewAggregate(), events: make(chan string, 100)}
	s.store.RegisterHandler(func(c mirror.Change) {
		switch {
		case !c.Visible():
		case c.Old == nil:
			s.events <- "add " + c.Key.FullName()
		case c.New == nil:
			s.events <- "delete " + c.Key.FullName()
		default:
			s.events <- "update " + c.Key.FullName()
		}
	})
	cfg := &config.Config{Upstreams: []config.Upstream{{
		Name: "east", ClusterID: "east", Guard: config.Guard{Percent: 100}, Source: &Config{Path: path},
	}}}
	var err error
	if s.Manager, err = upstreams.NewManager(cfg, []upstreams.Kind{Kind()}, s.store, nil, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- s.store.Run(ctx) }()
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
	})
	return s
}

func (s *fileSource) status() upstreams.Status { return s.Status()[0] }

// wantEvents waits for the next events, in any order.
func (s *fileSource) wantEvents(want ...string) {
	s.t.Helper()
	await.Until(s.t, fmt.Sprintf("events %v", want), func() bool { return len(s.events) >= len(want) }, func() any { return s.status() })
	var got []string
	for range want {
		got = append(got, <-s.events)
	}
	slices.Sort(got)
	slices.Sort(want)
	if d := cmp.Diff(want, got); d != "" {
		s.t.Fatalf("events: -want +got:\n%s", d)
	}
}

// wantStatus waits until the status is as wanted.
func (s *fileSource) wantStatus(what string, ok func(upstreams.Status) bool) upstreams.Status {
	s.t.Helper()
	var st upstreams.Status
	await.Until(s.t, what, func() bool { st = s.status(); return ok(st) }, func() any { return st })
	return st
}

func synced(st upstreams.Status) bool { return st.State == upstreams.StateSynced && st.Synced }
func failed(st upstreams.Status) bool { return st.State == upstreams.StateFailed && st.LastError != "" }

func (s *fileSource) names() (names []string) {
	for kind := range s.store.Counts() {
		for _, r := range s.store.List(kind, "") {
			names = append(names, r.FullName())
		}
	}
	slices.Sort(names)
	return names
}

func (s *fileSource) wantNames(want ...string) {
	s.t.Helper()
	if d := cmp.Diff(want, s.names()); d != "" {
		s.t.Fatalf("resources: -want +got:\n%s", d)
	}
}

func write(t *testing.T, text string, path ...string) {
	t.Helper()
	name := filepath.Join(path...)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestFilesAreFollowed(t *testing.T) {
	dir := t.TempDir()
	write(t, serviceEntry("a", "a.x"), dir, "a.yaml")
	s := startFile(t, dir)
	s.wantEvents("add shop/a")
	st := s.wantStatus("synced", synced)
	if d := cmp.Diff(map[string]int{"networking.istio.io/ServiceEntry": 1}, st.Resources); d != "" || st.Type != "file" || st.LastUpdate.IsZero() {
		t.Errorf("status %+v", st)
	}
	if !mirror.IsClosed(s.store.Synced()) {
		s.wantStatus("told", func(upstreams.Status) bool { return mirror.IsClosed(s.store.Synced()) })
	}

	write(t, serviceEntry("b", "b.x"), dir, "b.json.yml")
	s.wantEvents("add shop/b")
	write(t, serviceEntry("ignored", "b.x"), dir, "README.txt")
	write(t, serviceEntry("ignored", "b.x"), dir, ".hidden.yaml")
	write(t, serviceEntry("a", "a.y"), dir, "a.yaml")
	s.wantEvents("update shop/a")

	// As editors save: a new file takes the old one's name.
	write(t, serviceEntry("a", "a.z"), dir, ".a.yaml.tmp")
	must(t, os.Rename(filepath.Join(dir, ".a.yaml.tmp"), filepath.Join(dir, "a.yaml")))
	s.wantEvents("update shop/a")

	write(t, serviceEntry("c", "c.x"), dir, "new", "deep", "c.yaml")
	s.wantEvents("add shop/c")
	write(t, serviceEntry("c", "c.y"), dir, "new", "deep", "c.yaml")
	s.wantEvents("update shop/c")

	must(t, os.Remove(filepath.Join(dir, "b.json.yml")))
	s.wantEvents("delete shop/b")
	must(t, os.RemoveAll(filepath.Join(dir, "new")))
	s.wantEvents("delete shop/c")
	s.wantNames("shop/a")
}

func TestEqualContentIsNoEvent(t *testing.T) {
	dir := t.TempDir()
	write(t, serviceEntry("a", "a.x"), dir, "a.yaml")
	s := startFile(t, dir)
	s.wantEvents("add shop/a")
	write(t, "# a comment\n"+serviceEntry("a", "a.x"), dir, "a.yaml")
	must(t, os.Rename(filepath.Join(dir, "a.yaml"), filepath.Join(dir, "z.yaml")))
	write(t, serviceEntry("b", "b.x"), dir, "b.yaml")
	s.wantEvents("add shop/b")
	s.wantNames("shop/a", "shop/b")
}

func TestBadDocumentKeepsTheLastGoodContentOfItsFile(t *testing.T) {
	dir := t.TempDir()
	write(t, serviceEntry("a", "a.x")+"---\n"+serviceEntry("b", "b.x"), dir, "ab.yaml")
	write(t, serviceEntry("c", "c.x"), dir, "c.yaml")
	s := startFile(t, dir)
	s.wantEvents("add shop/a", "add shop/b", "add shop/c")

	// a is broken, b gone: all of the file stays; the other file changes.
	write(t, strings.Replace(serviceEntry("a", "a.x"), "hosts", "hostz", 1), dir, "ab.yaml")
	write(t, serviceEntry("c", "c.y"), dir, "c.yaml")
	s.wantEvents("update shop/c")
	st := s.wantStatus("refusing", func(st upstreams.Status) bool { return st.RefusedTotal == 1 })
	want := records.Refusal{
		Resource: filepath.Join(dir, "ab.yaml") + ":7 ServiceEntry shop/a",
		Reason:   "spec.hostz: unknown field: check its spelling and indentation",
	}
	if d := cmp.Diff([]records.Refusal{want}, st.Refused); d != "" || st.State != upstreams.StateSynced {
		t.Errorf("state %s, refused: -want +got:\n%s", st.State, d)
	}
	s.wantNames("shop/a", "shop/b", "shop/c")

	write(t, serviceEntry("a", "a.y"), dir, "ab.yaml")
	s.wantEvents("update shop/a", "delete shop/b")
	s.wantStatus("free of refusals", func(st upstreams.Status) bool { return st.RefusedTotal == 0 && len(st.Refused) == 0 })
}

func TestUnknownKindIsRefusedAndItsNeighboursLoad(t *testing.T) {
	dir := t.TempDir()
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n---\n"
	write(t, pod+serviceEntry("a", "a.x"), dir, "a.yaml")
	s := startFile(t, dir)
	s.wantEvents("add shop/a")
	write(t, pod+serviceEntry("b", "b.x"), dir, "a.yaml")
	s.wantEvents("add shop/b", "delete shop/a")
	st := s.status()
	if st.RefusedTotal != 1 || !strings.HasPrefix(st.Refused[0].Resource, filepath.Join(dir, "a.yaml")+":2 Pod p") {
		t.Errorf("refused %v", st.Refused)
	}
}

func TestFirstOfTwoDocumentsWithOneKeyIsKept(t *testing.T) {
	dir := t.TempDir()
	write(t, serviceEntry("a", "first.x")+"---\n"+serviceEntry("a", "second.x"), dir, "a.yaml")
	write(t, serviceEntry("a", "third.x"), dir, "b.yaml")
	resources, problems, err := Read(dir, "east", false)
	must(t, err)
	at := filepath.Join(dir, "a.yaml") + ":1"
	reason := "is also in " + at + ", which is kept: remove or rename one of them"
	want := []records.Refusal{
		{Resource: filepath.Join(dir, "a.yaml") + ":10 networking.istio.io/ServiceEntry shop/a", Reason: reason},
		{Resource: filepath.Join(dir, "b.yaml") + ":1 networking.istio.io/ServiceEntry shop/a", Reason: reason},
	}
	if d := cmp.Diff(want, problems); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if len(resources) != 1 || !strings.Contains(string(resources[0].Frame()), "first.x") {
		t.Errorf("%d resources, want the first", len(resources))
	}

	s := startFile(t, dir)
	s.wantEvents("add shop/a")
	must(t, os.Remove(filepath.Join(dir, "a.yaml")))
	s.wantEvents("update shop/a") // the shadowed one takes over: no deletion
}

func TestMissingPathIsFailedUntilItCanBeRead_C21(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "there")
	s := startFile(t, dir)
	st := s.wantStatus("failed", failed)
	if st.Synced || mirror.IsClosed(s.store.Synced()) || !strings.Contains(st.LastError, dir) {
		t.Errorf("status %+v", st)
	}
	write(t, serviceEntry("a", "a.x"), dir, "a.yaml")
	s.wantEvents("add shop/a")
	if st := s.wantStatus("synced", synced); st.LastError != "" {
		t.Errorf("status %+v", st)
	}
}

func TestEmptyDirectoryIsSyncedAndEmpty(t *testing.T) {
	s := startFile(t, t.TempDir())
	s.wantStatus("synced", synced)
	s.wantNames()
}

func TestVanishedDirectoryWipesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "configs")
	write(t, serviceEntry("a", "a.x"), dir, "a.yaml")
	s := startFile(t, dir)
	s.wantEvents("add shop/a")

	must(t, os.Rename(dir, dir+".away"))
	if st := s.wantStatus("failed", failed); !st.Synced {
		t.Error("a source that was synced is not any more")
	}
	s.wantNames("shop/a")

	// Another directory takes its place, and is watched in its turn.
	write(t, serviceEntry("b", "b.x"), dir, "b.yaml")
	s.wantEvents("add shop/b", "delete shop/a")
	s.wantStatus("synced", synced)
	write(t, serviceEntry("b", "b.y"), dir, "b.yaml")
	s.wantEvents("update shop/b")
}

func TestVanishedFileWipesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "configs.yaml")
	write(t, serviceEntry("a", "a.x"), path)
	s := startFile(t, path)
	s.wantEvents("add shop/a")
	must(t, os.Remove(path))
	s.wantStatus("failed", failed)
	s.wantNames("shop/a")
	write(t, serviceEntry("a", "a.y"), path)
	s.wantEvents("update shop/a")
	write(t, serviceEntry("a", "a.z"), path)
	s.wantEvents("update shop/a")
}

// A mounted ConfigMap has its files in a directory that a link, ..data, leads to; an
// update swaps the link.
func TestConfigMapSwapIsOneChange(t *testing.T) {
	for _, tc := range []struct {
		path string
		keys []string
	}{
		{"", []string{"shop/a", "shop/b"}},
		{"a.yaml", []string{"shop/a"}},
	} {
		t.Run("path "+tc.path, func(t *testing.T) {
			dir := t.TempDir()
			swap := func(version int) {
				t.Helper()
				name := fmt.Sprintf("..v%d", version)
				write(t, serviceEntry("a", fmt.Sprintf("a%d.x", version)), dir, name, "a.yaml")
				write(t, serviceEntry("b", fmt.Sprintf("b%d.x", version)), dir, name, "sub", "b.yaml")
				must(t, os.Symlink(name, filepath.Join(dir, "..data_tmp")))
				must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
			}
			events := func(what string) (all []string) {
				for _, key := range tc.keys {
					all = append(all, what+" "+key)
				}
				return all
			}
			swap(0)
			must(t, os.Symlink(filepath.Join("..data", "a.yaml"), filepath.Join(dir, "a.yaml")))
			must(t, os.Symlink(filepath.Join("..data", "sub"), filepath.Join(dir, "sub")))
			s := startFile(t, filepath.Join(dir, tc.path))
			s.wantEvents(events("add")...)
			for version := range 3 {
				swap(version + 1)
				must(t, os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..v%d", version))))
				s.wantEvents(events("update")...)
			}
		})
	}
}

func TestLinkedDirectoryIsReadThrough(t *testing.T) {
	dir := t.TempDir()
	write(t, serviceEntry("a", "a.x"), dir, "v1", "a.yaml")
	write(t, serviceEntry("a", "a.y"), dir, "v2", "a.yaml")
	link := filepath.Join(dir, "current")
	must(t, os.Symlink("v1", link))
	must(t, os.Symlink(".", filepath.Join(dir, "v1", "circle")))
	s := startFile(t, link)
	s.wantEvents("add shop/a")
	must(t, os.Symlink("v2", link+".new"))
	must(t, os.Rename(link+".new", link))
	s.wantEvents("update shop/a")
	write(t, serviceEntry("a", "a.z"), dir, "v2", "a.yaml")
	s.wantEvents("update shop/a")
}

func TestRefusalsAreBounded(t *testing.T) {
	bad := "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n"
	list := "apiVersion: v1\nkind: List\nitems:\n" + strings.Repeat("- {apiVersion: v1, kind: Pod}\n", 1000)
	dir := t.TempDir()
	write(t, strings.Repeat(bad+"---\n", 150)+list, dir, "a.yaml")
	write(t, bad, dir, "b.yaml")
	s := startFile(t, dir)
	st := s.wantStatus("synced", synced)
	if len(st.Refused) != maxRefused || st.RefusedTotal != 1151 {
		t.Errorf("%d refusals of %d, want %d of 1151", len(st.Refused), st.RefusedTotal, maxRefused)
	}
}
