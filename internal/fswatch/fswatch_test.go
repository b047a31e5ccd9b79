package fswatch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"

	"meshrelay/internal/testing/await"
)

// options are those of a file of which half is as valid as all of it.
var options = Options{Longest: 5 * time.Second, Writing: time.Second}

func TestLinksThatLeadNowhereEnd(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Symlink("b", filepath.Join(dir, "a")), os.Symlink("a", filepath.Join(dir, "b"))); err != nil {
		t.Fatal(err)
	}
	dirs, names := route(filepath.Join(dir, "a", "relay.yaml"))
	if !dirs[dir] || !names[filepath.Join(dir, "a")] || !names[filepath.Join(dir, "b")] || len(dirs) != 1 {
		t.Error(dirs, names)
	}
	// A missing file would appear in the first directory that exists.
	dirs, names = route(filepath.Join(dir, "none", "at", "all"))
	if !dirs[dir] || !names[filepath.Join(dir, "none")] || len(dirs) != 1 {
		t.Error(dirs, names)
	}
}

func TestAFileIsReadWhenItHasBeenQuiet(t *testing.T) {
	for name, tc := range map[string]struct {
		soon  bool
		first fsnotify.Op
		then  fsnotify.Op // of the others
		every time.Duration
		times int
		want  time.Duration
	}{
		"one change":                     {false, fsnotify.Create, fsnotify.Create, time.Hour, 1, Quiet},
		"several changes":                {false, fsnotify.Create, fsnotify.Create, Quiet / 2, 7, 6*Quiet/2 + Quiet},
		"changes without end":            {false, fsnotify.Create, fsnotify.Create, Quiet / 2, 1000, options.Longest},
		"changes of something else":      {false, 0, 0, time.Hour, 0, Rescan},
		"at first":                       {true, 0, 0, time.Hour, 0, Quiet},
		"written in place, and no more":  {false, fsnotify.Write, fsnotify.Write, time.Hour, 1, options.Writing},
		"written in place, with a pause": {false, fsnotify.Write, fsnotify.Write, options.Writing * 3 / 4, 3, 2*(options.Writing*3/4) + options.Writing},
		"written in place without end":   {false, fsnotify.Write, fsnotify.Write, options.Writing / 2, 1000, options.Longest},
		"written while it is looked for": {true, fsnotify.Write, fsnotify.Write, Quiet, 2, Quiet + options.Writing},
		"written, and then its mode set": {false, fsnotify.Write, fsnotify.Chmod, Quiet, 3, options.Writing},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				events := make(chan fsnotify.Event)
				w := New(options)
				w.events, w.names = events, map[string]bool{"/etc/relay.yaml": true}
				ctx, cancel := context.WithCancel(t.Context())
				sent := make(chan struct{})
				defer func() { cancel(); <-sent }() // a bubble whose test has ended has no clock
				go func() {
					defer close(sent)
					send := func(name string, op fsnotify.Op, after time.Duration) bool {
						await.Pass(after)
						select {
						case events <- fsnotify.Event{Name: name, Op: op}:
							return true
						case <-ctx.Done():
							return false
						}
					}
					for i := range tc.times {
						op := tc.then
						if i == 0 {
							op = tc.first
						}
						if !send("/etc/relay.yaml", op, min(tc.every, time.Duration(i)*tc.every)) {
							return
						}
					}
					for send("/etc/other", fsnotify.Write, time.Millisecond) {
					}
				}()
				start := time.Now()
				if woken, err := w.Wait(ctx, tc.soon, nil); woken || err != nil || time.Since(start) != tc.want {
					t.Errorf("%v, %v after %v, want it after %v", woken, err, time.Since(start), tc.want)
				}
			})
		})
	}
}

// waited returns how long a wait takes while send does its work.
func waited(t *testing.T, w *Watcher, send func(events chan<- fsnotify.Event, errs chan<- error)) time.Duration {
	t.Helper()
	events, errs := make(chan fsnotify.Event), make(chan error)
	w.events, w.errors = events, errs
	start, sent := time.Now(), make(chan struct{})
	defer func() { <-sent }()
	go func() { defer close(sent); send(events, errs) }()
	if _, err := w.Wait(t.Context(), false, nil); err != nil {
		t.Fatal(err)
	}
	return time.Since(start)
}

func TestChangesInADirectoryAreGathered(t *testing.T) {
	change := fsnotify.Event{Name: "/configs/a.yaml", Op: fsnotify.Write}
	for _, tc := range []struct {
		name  string
		blind bool
		send  func(chan<- fsnotify.Event, chan<- error)
		want  time.Duration
	}{
		{"one", false, func(ev chan<- fsnotify.Event, _ chan<- error) { ev <- change }, Quiet},
		{"several", false, func(ev chan<- fsnotify.Event, _ chan<- error) {
			for range 3 {
				ev <- change
				await.Pass(Quiet / 2)
			}
		}, 2*Quiet/2 + Quiet},
		{"without end", false, func(ev chan<- fsnotify.Event, _ chan<- error) {
			for at := time.Now(); time.Since(at) < Longest; await.Pass(Quiet / 2) {
				ev <- change
			}
		}, Longest},
		{"lost events", false, func(_ chan<- fsnotify.Event, errs chan<- error) { errs <- fsnotify.ErrEventOverflow }, Quiet},
		{"none", false, func(chan<- fsnotify.Event, chan<- error) {}, Rescan},
		{"none can be had", true, func(chan<- fsnotify.Event, chan<- error) {}, Poll},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := New(Options{})
				w.inside, w.blind = map[string]bool{"/configs": true}, tc.blind
				if got := waited(t, w, tc.send); got != tc.want {
					t.Errorf("waited %v, want %v", got, tc.want)
				}
			})
		})
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := New(Options{}).Wait(ctx, false, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestWaitIsShortWhenAFileIsBeingWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if _, err := New(Options{}).Wait(t.Context(), true, nil); err != nil || time.Since(start) != Quiet {
			t.Errorf("waited %v (%v), want %v", time.Since(start), err, Quiet)
		}
	})
}

func TestOtherFilesBesideThePathAreNoConcern(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "configs")
	if err := os.MkdirAll(filepath.Join(root, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	w := New(Options{})
	defer w.Close()
	if err := w.Watch(root, root, filepath.Join(root, "sub")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"configs": true, "configs/a.yaml": true, "configs/sub": true, "configs/sub/b.yaml": true, "other": false, "configs.yaml": false,
	} {
		if got := w.concerns(filepath.Join(dir, name)); got != want {
			t.Errorf("%s concerns us: %v, want %v", name, got, want)
		}
	}
}
