package local

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"meshrelay/state"
	"meshrelay/state/local/statepb"
)

// TestAStateDirectoryThatIsNotOursAndOthersCanWriteToIsNotUsed: what is in it would be served
// before any upstream answers.
func TestAStateDirectoryThatIsNotOursAndOthersCanWriteToIsNotUsed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a directory to somebody else")
	}
	const nobody = 65534
	for name, tc := range map[string]struct {
		uid, gid int
		mode     os.FileMode
		used     bool
		noted    bool
	}{
		"ours":                             {0, 0, 0o700, true, false},
		"ours, and others can write":       {0, 0, 0o777, true, false}, // it is taken from them
		"somebody's":                       {nobody, nobody, 0o700, true, true},
		"somebody's, and a group's":        {nobody, nobody, 0o770, false, false},
		"somebody's, and everybody's":      {nobody, nobody, 0o777, false, false},
		"like /tmp":                        {0, 0, 0o777 | os.ModeSticky, false, false},
		"somebody's, others can only read": {nobody, nobody, 0o755, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "state")
			keepOne(t, dir)
			must(t, os.Chown(dir, tc.uid, tc.gid))
			must(t, os.Chmod(dir, tc.mode))
			k := openState(dir)
			defer end(k)
			st := k.Status()
			if st.InUse != tc.used || (st.Note != "") != tc.noted {
				t.Errorf("status %+v", st)
			}
			if tc.noted && !strings.Contains(st.Note, dir) || !tc.used && !strings.Contains(st.LastError, dir) {
				t.Errorf("the directory is not named: %+v", st)
			}
			if got := len(k.Load("east").Records); (got == 1) != tc.used {
				t.Errorf("%d resources of it are served", got)
			}
			if info, err := os.Stat(dir); err != nil || tc.used && info.Mode().Perm()&0o022 != 0 {
				t.Errorf("others can still write to it: %v %v", info.Mode(), err)
			}
		})
	}
}

func TestLinksInTheStateDirectoryAreNotFollowed(t *testing.T) {
	for _, file := range []string{lockName, indexName, logName("east")} {
		dir, other := t.TempDir(), t.TempDir()
		keepOne(t, other) // what somebody would have served
		victim := filepath.Join(other, file)
		if file == lockName {
			victim = filepath.Join(other, "victim.txt") // it would be made
		}
		before, _ := os.ReadFile(victim)
		must(t, os.Symlink(victim, filepath.Join(dir, file)))
		k := openState(dir)
		if st := k.Status(); st.InUse || !strings.Contains(st.LastError, file) || !strings.Contains(st.LastError, "is a link") {
			t.Errorf("%s: status %+v", file, st)
		}
		if got := len(k.Load("east").Records); got != 0 {
			t.Errorf("%s: %d resources from behind the link are served", file, got)
		}
		if after, err := os.ReadFile(victim); file == lockName && err == nil || string(before) != string(after) {
			t.Errorf("%s: what the link leads to was touched: %v", file, err)
		}
		// It is used when the link is gone.
		must(t, os.Remove(filepath.Join(dir, file)))
		flush(t, k)
		if st := k.Status(); !st.InUse || st.LastError != "" {
			t.Errorf("%s: afterwards %+v", file, st)
		}
		end(k)
	}
}

// TestADirectoryBehindALinkOfSomebodyElseIsNotUsed: systemd makes such links, which are root's.
func TestADirectoryBehindALinkOfSomebodyElseIsNotUsed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a link to somebody else")
	}
	dir := t.TempDir()
	keepOne(t, dir)
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(dir, link))
	end(open(t, link))
	must(t, os.Lchown(link, 65534, 65534))
	k := openState(link)
	defer end(k)
	if st := k.Status(); st.InUse || !strings.Contains(st.LastError, link) || len(k.Load("east").Records) != 0 {
		t.Errorf("status %+v", st)
	}
}

// TestNamesOfUpstreamsAreCheckedWhenAStateIsRead: they become names of directories.
func TestNamesOfUpstreamsAreCheckedWhenAStateIsRead(t *testing.T) {
	dir := t.TempDir()
	const evil = "x/../../evil"
	keepOne(t, dir)
	store := New(dir, nil)
	_, err := store.Open()
	must(t, err)
	change := state.Change{Key: resource("db", "1").Key(), Record: record("db", "1")}
	if _, err := store.Apply(evil, state.Batch{Changes: []state.Change{change}}); err == nil {
		t.Error("a name that is a path is kept")
	}
	must(t, store.Close())

	// An index may name anything.
	forged := t.TempDir()
	keepOne(t, forged)
	must(t, New(forged, nil).writeIndex(&statepb.Index{Upstreams: []string{evil, "east"}}))
	if file, err := ReadFile(Path(forged)); err != nil || len(file.Sources) != 1 || !strings.Contains(file.Damage, evil) {
		t.Errorf("%+v, %v", file, err)
	}
	end(openState(forged))
	end(open(t, forged)) // it is gone

	for name, want := range map[string]bool{"east": true, "e-1": true, "": false, ".": false, "a/b": false, "A": false, "a-": false, strings.Repeat("a", 64): false} {
		if state.IsName(name) != want {
			t.Errorf("%q", name)
		}
	}
}
