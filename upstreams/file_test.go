package upstreams

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
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"meshrelay/config"
	"meshrelay/mirror"
)

// fileSource is a running file source and the events of its store.
type fileSource struct {
	*File
	t      *testing.T
	store  *mirror.Store
	events chan string
}

func startFile(t *testing.T, path string) *fileSource {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) }) // runs after the source has ended
	s := &fileSource{t: t, store: mirror.NewStore(), events: make(chan string, 100)}
	err := s.store.RegisterEventHandler(mirror.Kind{}, func(old, cur *mirror.Resource, e mirror.Event) {
		if cur == nil {
			cur = old
		}
		s.events <- e.String() + " " + cur.FullName()
	})
	if err != nil {
		t.Fatal(err)
	}
	s.File = NewFile(config.Upstream{Name: "east", ClusterID: "east", File: &config.File{Path: path}}, s.store, slog.New(slog.DiscardHandler))
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

// wantEvents waits for the next events, in any order.
func (s *fileSource) wantEvents(want ...string) {
	s.t.Helper()
	var got []string
	deadline := time.After(20 * time.Second)
	for range want {
		select {
		case e := <-s.events:
			got = append(got, e)
		case <-deadline:
			s.t.Fatalf("events %v, want %v; status %+v", got, want, s.Status())
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if d := cmp.Diff(want, got); d != "" {
		s.t.Fatalf("events: -want +got:\n%s", d)
	}
}

// wantStatus waits until the status is as wanted.
func (s *fileSource) wantStatus(what string, ok func(Status) bool) Status {
	s.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for {
		st := s.Status()
		if ok(st) {
			return st
		}
		select {
		case <-tick.C:
		case <-deadline:
			s.t.Fatalf("not %s: %+v", what, st)
		}
	}
}

func synced(st Status) bool { return st.State == StateSynced && st.Synced }
func failed(st Status) bool { return st.State == StateFailed && st.LastError != "" }

func (s *fileSource) names() (names []string) {
	for _, kind := range s.store.Kinds() {
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
	if !s.store.HasSynced() {
		s.wantStatus("told", func(Status) bool { return s.store.HasSynced() })
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
	st := s.wantStatus("refusing", func(st Status) bool { return st.RefusedTotal == 1 })
	want := Refusal{
		Resource: filepath.Join(dir, "ab.yaml") + ":7 ServiceEntry shop/a",
		Reason:   "spec.hostz: unknown field: check its spelling and indentation",
	}
	if d := cmp.Diff([]Refusal{want}, st.Refused); d != "" || st.State != StateSynced {
		t.Errorf("state %s, refused: -want +got:\n%s", st.State, d)
	}
	s.wantNames("shop/a", "shop/b", "shop/c")

	write(t, serviceEntry("a", "a.y"), dir, "ab.yaml")
	s.wantEvents("update shop/a", "delete shop/b")
	s.wantStatus("free of refusals", func(st Status) bool { return st.RefusedTotal == 0 && len(st.Refused) == 0 })
}

// A file that never was good gives its good documents, and none of them goes because it
// turns bad later.
func TestFileThatNeverWasGoodLosesNothing(t *testing.T) {
	bad := "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\n"
	s := newScanner("east")
	first := s.parse("a.yaml", []byte(serviceEntry("a", "a.x")+"---\n"+serviceEntry("b", "b.x")+"---\n"+bad), nil)
	second := s.parse("a.yaml", []byte(serviceEntry("a", "a.y")+"---\n"+strings.Replace(serviceEntry("b", "b.y"), "hosts", "hostz", 1)+"---\n"+bad), first)
	third := s.parse("a.yaml", []byte(serviceEntry("a", "a.y")), second)
	for i, tc := range []struct {
		f        *fileState
		want     []string
		problems int
	}{
		{first, []string{"1 networking.istio.io/ServiceEntry shop/a", "10 networking.istio.io/ServiceEntry shop/b"}, 1},
		{second, []string{"1 networking.istio.io/ServiceEntry shop/a", "10 networking.istio.io/ServiceEntry shop/b"}, 2},
		{third, []string{"1 networking.istio.io/ServiceEntry shop/a"}, 0},
	} {
		if d := cmp.Diff(tc.want, keys(tc.f)); d != "" || len(tc.f.problems) != tc.problems {
			t.Errorf("reading %d: problems %v, resources -want +got:\n%s", i+1, tc.f.problems, d)
		}
	}
	if first.inForce[0].resource.Equal(second.inForce[0].resource) || !first.inForce[1].resource.Equal(second.inForce[1].resource) {
		t.Error("the second reading should change a and keep b")
	}
}

func TestUnknownKindIsRefusedAndItsNeighboursLoad(t *testing.T) {
	dir := t.TempDir()
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n---\n"
	write(t, pod+serviceEntry("a", "a.x"), dir, "a.yaml")
	s := startFile(t, dir)
	s.wantEvents("add shop/a")
	write(t, pod+serviceEntry("b", "b.x"), dir, "a.yaml")
	s.wantEvents("add shop/b", "delete shop/a")
	st := s.Status()
	if st.RefusedTotal != 1 || !strings.HasPrefix(st.Refused[0].Resource, filepath.Join(dir, "a.yaml")+":2 Pod p") {
		t.Errorf("refused %v", st.Refused)
	}
}

func TestFirstOfTwoDocumentsWithOneKeyIsKept(t *testing.T) {
	dir := t.TempDir()
	write(t, serviceEntry("a", "first.x")+"---\n"+serviceEntry("a", "second.x"), dir, "a.yaml")
	write(t, serviceEntry("a", "third.x"), dir, "b.yaml")
	resources, problems, err := ReadFiles(dir, "east")
	must(t, err)
	at := filepath.Join(dir, "a.yaml") + ":1"
	reason := "is in " + at + " already, which is kept: remove or rename one of them"
	want := []Refusal{
		{filepath.Join(dir, "a.yaml") + ":10 networking.istio.io/ServiceEntry shop/a", reason},
		{filepath.Join(dir, "b.yaml") + ":1 networking.istio.io/ServiceEntry shop/a", reason},
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
	if st.Synced || s.store.HasSynced() || !strings.Contains(st.LastError, dir) {
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
	dir := t.TempDir()
	swap := func(version string, files map[string]string) {
		t.Helper()
		for name, text := range files {
			write(t, text, dir, version, name)
		}
		must(t, os.Symlink(version, filepath.Join(dir, "..data_tmp")))
		must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	swap("..v1", map[string]string{"a.yaml": serviceEntry("a", "a.x"), "sub/b.yaml": serviceEntry("b", "b.x")})
	must(t, os.Symlink(filepath.Join("..data", "a.yaml"), filepath.Join(dir, "a.yaml")))
	must(t, os.Symlink(filepath.Join("..data", "sub"), filepath.Join(dir, "sub")))

	s := startFile(t, dir)
	one := startFile(t, filepath.Join(dir, "a.yaml"))
	s.wantEvents("add shop/a", "add shop/b")
	one.wantEvents("add shop/a")
	for i := range 3 {
		swap(fmt.Sprintf("..v%d", i+2), map[string]string{"a.yaml": serviceEntry("a", fmt.Sprintf("a%d.y", i)), "sub/b.yaml": serviceEntry("b", fmt.Sprintf("b%d.y", i))})
		must(t, os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..v%d", i+1))))
		s.wantEvents("update shop/a", "update shop/b")
		one.wantEvents("update shop/a")
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

func TestUnreadableIsNotDeleted(t *testing.T) {
	dir := t.TempDir()
	write(t, serviceEntry("a", "a.x"), dir, "a.yaml")
	write(t, serviceEntry("b", "b.x"), dir, "sub", "b.yaml")
	s := newScanner("east")
	must(t, s.scan(dir))

	// A file that has grown beyond measure, and a directory that is a link to itself,
	// fail for every user.
	must(t, os.Truncate(filepath.Join(dir, "a.yaml"), maxFileBytes+1))
	must(t, os.RemoveAll(filepath.Join(dir, "sub")))
	must(t, os.Symlink("sub", filepath.Join(dir, "sub")))
	must(t, s.scan(dir))
	merged, problems, total := s.merge()
	if len(merged) != 2 || total != 2 {
		t.Fatalf("%d resources, %d problems: %v", len(merged), total, problems)
	}
	want := Refusal{filepath.Join(dir, "a.yaml"), "can not be read, what it gave stays in force: larger than 64 MiB: split it into several files"}
	if d := cmp.Diff(want, problems[0]); d != "" {
		t.Error(d)
	}
	if !strings.HasPrefix(problems[1].Resource, filepath.Join(dir, "sub")) {
		t.Errorf("second problem is %v", problems[1])
	}

	must(t, os.Remove(filepath.Join(dir, "sub")))
	must(t, s.scan(dir))
	if merged, _, _ := s.merge(); len(merged) != 1 {
		t.Errorf("%d resources after the directory was deleted, want 1", len(merged))
	}
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

func TestOnlyChangedDocumentsAreParsedAgain(t *testing.T) {
	s := newScanner("east")
	first := s.parse("a.yaml", []byte(serviceEntry("a", "a.x")+"---\n"+serviceEntry("b", "b.x")), nil)
	second := s.parse("a.yaml", []byte(serviceEntry("a", "a.y")+"---\n"+serviceEntry("b", "b.x")), first)
	if first.inForce[1].entry != second.inForce[1].entry || first.inForce[0].entry == second.inForce[0].entry {
		t.Error("the changed document, and only it, should have been parsed again")
	}
}

func TestPathThatIsNoFileIsAnError(t *testing.T) {
	for _, path := range []string{os.DevNull, filepath.Join(t.TempDir(), "none")} {
		if _, _, err := ReadFiles(path, "east"); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: error %v", path, err)
		}
	}
}
