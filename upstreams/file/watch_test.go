package file

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
)

// waited returns how long a wait takes while send does its work.
func waited(t *testing.T, w *watch, send func(events chan<- fsnotify.Event, errs chan<- error)) time.Duration {
	t.Helper()
	events, errs := make(chan fsnotify.Event), make(chan error)
	w.events, w.errors = events, errs
	start := time.Now()
	go send(events, errs)
	if err := w.wait(t.Context(), false, nil); err != nil {
		t.Fatal(err)
	}
	return time.Since(start)
}

func TestChangesOfFilesAreGathered(t *testing.T) {
	change := fsnotify.Event{Name: "/configs/a.yaml", Op: fsnotify.Write}
	for _, tc := range []struct {
		name  string
		blind error
		send  func(chan<- fsnotify.Event, chan<- error)
		want  time.Duration
	}{
		{"one", nil, func(ev chan<- fsnotify.Event, _ chan<- error) { ev <- change }, fileQuiet},
		{"several", nil, func(ev chan<- fsnotify.Event, _ chan<- error) {
			for range 3 {
				ev <- change
				time.Sleep(fileQuiet / 2)
			}
		}, 2*fileQuiet/2 + fileQuiet},
		{"without end", nil, func(ev chan<- fsnotify.Event, _ chan<- error) {
			for at := time.Now(); time.Since(at) < fileLongest; time.Sleep(fileQuiet / 2) {
				ev <- change
			}
		}, fileLongest},
		{"lost events", nil, func(_ chan<- fsnotify.Event, errs chan<- error) { errs <- fsnotify.ErrEventOverflow }, fileQuiet},
		{"none", nil, func(chan<- fsnotify.Event, chan<- error) {}, fileRescan},
		{"none can be had", errors.New("no watches left"), func(chan<- fsnotify.Event, chan<- error) {}, fileBlindRescan},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &watch{root: "/configs", covered: map[string]bool{"/configs": true}, blind: tc.blind}
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
	if err := (&watch{}).wait(ctx, false, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestWaitIsShortWhenAFileIsBeingWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if err := (&watch{}).wait(t.Context(), true, nil); err != nil || time.Since(start) != fileQuiet {
			t.Errorf("waited %v (%v), want %v", time.Since(start), err, fileQuiet)
		}
	})
}

func TestOtherFilesBesideThePathAreNoConcern(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "configs")
	write(t, "", root, "a.yaml")
	w := &watch{root: root, parent: dir, covered: map[string]bool{root: true, filepath.Join(root, "sub"): true}}
	for name, want := range map[string]bool{
		"configs": true, "configs/a.yaml": true, "configs/sub": true, "configs/sub/b.yaml": true, "other": false, "configs.yaml": false,
	} {
		if got := w.concerns(filepath.Join(dir, name)); got != want {
			t.Errorf("%s concerns us: %v, want %v", name, got, want)
		}
	}
}
