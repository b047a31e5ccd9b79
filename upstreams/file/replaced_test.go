package file

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/semaphore"
)

// whileReading returns a scanner that has read dir, and calls f with the number of the
// file, from 0, before it reads each one again.
func whileReading(t *testing.T, dir string, f func(n int)) *scanner {
	t.Helper()
	s := newScanner("east")
	must(t, s.scan(dir))
	s.helpers = semaphore.NewWeighted(0) // one file after the other
	n := 0
	s.read = func(found *listing, path string) ([]byte, time.Time, error) {
		f(n)
		n++
		return readBounded(found, path)
	}
	// Files count as rested, whenever they were written.
	s.now = func() time.Time { return time.Now().Add(time.Hour) }
	return s
}

func wantScanned(t *testing.T, s *scanner, want ...string) {
	t.Helper()
	merged, problems, _ := s.merge()
	got := []string{}
	for key := range merged {
		got = append(got, key.Name)
	}
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" || len(problems) > 0 {
		t.Errorf("problems %v; resources: -want +got:\n%s", problems, d)
	}
}

func TestPathThatVanishesWhileItIsReadWipesNothing(t *testing.T) {
	for n := range 3 {
		t.Run(fmt.Sprintf("before file %d", n), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "configs")
			for _, name := range []string{"a", "b", "c"} {
				write(t, serviceEntry(name, name+".x"), dir, name+".yaml")
			}
			s := whileReading(t, dir, func(at int) {
				if at == n {
					must(t, os.Rename(dir, dir+".away"))
				}
			})
			if err := s.scan(dir); err == nil {
				t.Error("no error")
			}
			wantScanned(t, s, "a", "b", "c")

			must(t, os.Rename(dir+".away", dir))
			must(t, s.scan(dir))
			wantScanned(t, s, "a", "b", "c")
		})
	}
}

// An object that an update moves to another file must not be missed between the two.
func TestPathReplacedWhileItIsReadIsReadAnew(t *testing.T) {
	versions := func(t *testing.T, dir string) {
		write(t, serviceEntry("kept", "k.x")+"---\n"+serviceEntry("old", "o.x"), dir, "v1", "b.yaml")
		write(t, serviceEntry("filler", "f.x"), dir, "v1", "a.yaml")
		write(t, serviceEntry("kept", "k.x")+"---\n"+serviceEntry("filler", "f.x"), dir, "v2", "a.yaml")
		write(t, serviceEntry("new", "n.x"), dir, "v2", "b.yaml")
		write(t, serviceEntry("newer", "n.y"), dir, "v2", "c.yaml")
	}
	relink := func(t *testing.T, to, link string) {
		must(t, os.Symlink(to, link+".new"))
		must(t, os.Rename(link+".new", link))
	}
	want := []string{"filler", "kept", "new", "newer"}

	t.Run("link to a directory", func(t *testing.T) {
		dir := t.TempDir()
		versions(t, dir)
		link := filepath.Join(dir, "current")
		must(t, os.Symlink("v1", link))
		s := whileReading(t, link, func(n int) {
			if n == 1 {
				relink(t, "v2", link)
			}
		})
		must(t, s.scan(link))
		wantScanned(t, s, want...)
	})
	t.Run("directory", func(t *testing.T) {
		dir := t.TempDir()
		versions(t, dir)
		path := filepath.Join(dir, "configs")
		must(t, os.Rename(filepath.Join(dir, "v1"), path))
		s := whileReading(t, path, func(n int) {
			if n == 1 {
				must(t, os.Rename(path, path+".old"))
				must(t, os.Rename(filepath.Join(dir, "v2"), path))
			}
		})
		must(t, s.scan(path))
		wantScanned(t, s, want...)
	})
	t.Run("files linked by way of another link", func(t *testing.T) {
		dir := t.TempDir()
		mount := filepath.Join(dir, "mount")
		versions(t, filepath.Join(mount, "..versions"))
		must(t, os.Symlink(filepath.Join("..versions", "v1"), filepath.Join(mount, "..data")))
		for _, name := range []string{"a.yaml", "b.yaml", "c.yaml"} { // c leads nowhere at first
			must(t, os.Symlink(filepath.Join("..data", name), filepath.Join(mount, name)))
		}
		s := whileReading(t, mount, func(n int) {
			if n == 1 {
				relink(t, filepath.Join("..versions", "v2"), filepath.Join(mount, "..data"))
				must(t, os.RemoveAll(filepath.Join(mount, "..versions", "v1")))
			}
		})
		must(t, s.scan(mount))
		wantScanned(t, s, want...)
	})
}

func TestFileDeletedWhileItIsReadIsADeletion(t *testing.T) {
	dir := t.TempDir()
	write(t, serviceEntry("a", "a.x"), dir, "a.yaml")
	write(t, serviceEntry("b", "b.x"), dir, "sub", "b.yaml")
	must(t, os.Symlink("nowhere.yaml", filepath.Join(dir, "dangling.yaml")))
	s := whileReading(t, dir, func(n int) {
		if n == 0 {
			must(t, os.RemoveAll(filepath.Join(dir, "sub")))
		}
	})
	must(t, s.scan(dir))
	wantScanned(t, s, "a")
}

func TestPathThatIsReplacedWithoutEndIsAnErrorAndWipesNothing(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "current")
	write(t, serviceEntry("a", "a.x"), dir, "v0", "a.yaml")
	write(t, serviceEntry("b", "b.x"), dir, "v1", "b.yaml")
	must(t, os.Symlink("v0", link))
	s := whileReading(t, link, func(n int) {
		must(t, os.Symlink(fmt.Sprintf("v%d", (n+1)%2), link+".new"))
		must(t, os.Rename(link+".new", link))
	})
	if err := s.scan(link); err == nil {
		t.Error("no error")
	}
	wantScanned(t, s, "a")
}

// Whoever may write into the directory may not thereby read with the relay's rights.
func TestNothingOutsideOfTheDirectoryIsRead(t *testing.T) {
	top := t.TempDir()
	dir, outside := filepath.Join(top, "configs"), filepath.Join(top, "outside")
	write(t, serviceEntry("in", "in.x"), dir, "in.yaml")
	write(t, serviceEntry("was", "was.x"), dir, "was.yaml")
	write(t, serviceEntry("out", "out.x"), outside, "out.yaml")
	write(t, "no resource", outside, "README")
	s := newScanner("east")
	must(t, s.scan(dir))
	must(t, os.Remove(filepath.Join(dir, "was.yaml")))
	links := map[string]string{
		"relative.yaml": "../outside/out.yaml", "absolute.yaml": filepath.Join(outside, "out.yaml"), "was.yaml": "../outside/out.yaml",
		"folder": "../outside", "again.yaml": "back.yaml", "back.yaml": "../configs/../outside/out.yaml", "README": "../outside/README",
	}
	for name, to := range links {
		must(t, os.Symlink(to, filepath.Join(dir, name)))
	}
	must(t, os.Symlink("in.yaml", filepath.Join(dir, "zz.yaml"))) // stays in the directory: the same resource again
	must(t, s.scan(dir))
	merged, problems, _ := s.merge()
	got, refused := []string{}, []string{}
	for key := range merged {
		got = append(got, key.Name)
	}
	slices.Sort(got)
	if d := cmp.Diff([]string{"in", "was"}, got); d != "" {
		t.Errorf("resources, -want +got:\n%s", d)
	}
	for _, p := range problems {
		refused = append(refused, filepath.Base(p.Resource))
		if !strings.Contains(p.Reason, "links must be relative and stay in "+dir) && !strings.Contains(p.Reason, "is also in") {
			t.Errorf("%s: %s", p.Resource, p.Reason)
		}
	}
	if want := []string{"absolute.yaml", "again.yaml", "back.yaml", "folder", "relative.yaml", "was.yaml"}; !slices.Equal(refused[:len(want)], want) {
		t.Errorf("refused %q, want %q and one that is twice", refused, want)
	}
	// A link that is swapped between the listing and the reading leads nowhere either.
	found, err := listFiles(dir)
	must(t, err)
	defer found.close()
	must(t, os.Remove(filepath.Join(dir, "in.yaml")))
	must(t, os.Symlink("../outside/out.yaml", filepath.Join(dir, "in.yaml")))
	if data, _, err := readBounded(found, filepath.Join(dir, "in.yaml")); err == nil {
		t.Errorf("read %q", data)
	}
}
