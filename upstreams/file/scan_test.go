package file

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"meshrelay/internal/fswatch"
	"meshrelay/internal/kube"
	"meshrelay/upstreams/intake/records"
)

// A file that never was good gives its good documents, and none of them goes because it
// turns bad later.
func TestFileThatNeverWasGoodLosesNothing(t *testing.T) {
	bad := "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\n"
	s := newScanner("east")
	first := s.parse("a.yaml", []byte(serviceEntry("a", "a.x")+"---\n"+serviceEntry("b", "b.x")+"---\n"+bad), nil)
	second := s.parse("a.yaml", []byte(serviceEntry("a", "a.y")+"---\n"+strings.Replace(serviceEntry("b", "b.y"), "hosts", "hostz", 1)+"---\n"+bad), first)
	third := s.parse("a.yaml", []byte(serviceEntry("a", "a.y")), second)
	for i, tc := range []struct {
		f        *content
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
	if first.good[0].Equal(second.good[0].Resource) || !first.good[1].Equal(second.good[1].Resource) {
		t.Error("the second reading should change a and keep b")
	}
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
	want := records.Refusal{Resource: filepath.Join(dir, "a.yaml"), Reason: "can not be read, its last content is served: larger than 16 MiB: split it into several files"}
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

func TestOnlyChangedDocumentsAreParsedAgain(t *testing.T) {
	s := newScanner("east")
	first := s.parse("a.yaml", []byte(serviceEntry("a", "a.x")+"---\n"+serviceEntry("b", "b.x")), nil)
	second := s.parse("a.yaml", []byte(serviceEntry("a", "a.y")+"---\n"+serviceEntry("b", "b.x")), first)
	if first.good[1].Resource != second.good[1].Resource || first.good[0].Resource == second.good[0].Resource {
		t.Error("the changed document, and only it, should have been parsed again")
	}
}

func TestPathThatIsNoFileIsAnError(t *testing.T) {
	for _, path := range []string{os.DevNull, filepath.Join(t.TempDir(), "none")} {
		if _, _, err := Read(path, "east", false); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: error %v", path, err)
		}
	}
}

// Many programs empty a file before they fill it.
func TestHalfWrittenFileIsNotADeletion(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	now := time.Now()
	written := func(text string, ago time.Duration) {
		t.Helper()
		write(t, text, path)
		must(t, os.Chtimes(path, now, now.Add(-ago)))
	}
	s := newScanner("east")
	s.now = func() time.Time { return now }
	scan := func(names int, busy bool) {
		t.Helper()
		must(t, s.scan(dir))
		if merged, _, _ := s.merge(); len(merged) != names || s.busy != busy {
			t.Fatalf("%d resources, busy %v; want %d, %v", len(merged), s.busy, names, busy)
		}
	}
	written(serviceEntry("a", "a.x"), 0)
	scan(1, true) // a file that was never read before can not look like a deletion

	written("", fswatch.Quiet/2)
	scan(1, true)
	written(serviceEntry("a", "a.y")+"---\n"+serviceEntry("b", "b.x"), fswatch.Quiet)
	scan(2, false)

	// A file that never rests is taken in the end.
	written("", 0)
	scan(2, true)
	now = now.Add(fswatch.Longest)
	written("", 0)
	scan(0, false)
}

func keys(f *content) (out []string) {
	for _, p := range f.good {
		out = append(out, fmt.Sprintf("%d %s", p.Line, p.Key()))
	}
	return out
}

// serviceEntry is a document.
func serviceEntry(name, host string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata:
  name: %s
  namespace: shop
spec:
  hosts:
  - %s
`, name, host)
}

// numberedLines are so many lines of one mapping.
func numberedLines(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "  k%d: v\n", i)
	}
	return b.String()
}

// FuzzFiles reads a file, the same again, and the same after an edit elsewhere.
func FuzzFiles(f *testing.F) {
	f.Add([]byte(serviceEntry("a", "a.x") + "---\n" + serviceEntry("b", "b.x")))
	f.Add([]byte("%YAML 1.2\n---\n{\"kind\": \"List\", \"items\": [&a {x: *a}]}\n...\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := newScanner("east")
		state := s.parse("a.yaml", data, nil)
		if len(state.problems) > kube.MaxProblems || state.total < len(state.problems) {
			t.Errorf("%d problems of %d", len(state.problems), state.total)
		}
		if again := s.parse("a.yaml", data, state); again != state {
			t.Error("the same text was parsed again")
		}
		edited := s.parse("a.yaml", append([]byte("# edited\n---\n"), data...), state)
		if state.whole && len(edited.good) != len(state.good) {
			t.Errorf("%d resources, %d after a comment was put in front: %v", len(state.good), len(edited.good), edited.problems)
		}
	})
}
