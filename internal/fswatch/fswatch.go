// Package fswatch reports possible changes of a file, or of files in directories, also where the
// path leads through links or does not exist yet.
//
// The package must not know what the files contain: it reads none.
package fswatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// maxLinks bounds the links in a path, as in the kernel.
	maxLinks = 40
	// maxRoutes bounds the attempts to watch a path that changes.
	maxRoutes = 10
)

// Whoever waits for files waits for these times.
const (
	// Quiet is the time without a change before Wait returns, and Longest the longest time that
	// a change waits for others.
	Quiet   = 100 * time.Millisecond
	Longest = time.Second
	// Rescan is the time after which Wait returns without a change, as network file systems
	// do not report all changes. Poll is the time where the system reports none.
	Rescan = time.Minute
	Poll   = 5 * time.Second
)

// Options are what differs from one Watcher to another. The zero value is the usual one.
type Options struct {
	// Writing replaces Quiet after a write in place, and Longest the constant, for a file of
	// which half may be as valid as all of it. 0: the usual times.
	Writing, Longest time.Duration
	// Open makes the system's watcher; nil: fsnotify.NewWatcher.
	Open func() (*fsnotify.Watcher, error)
}

// Watcher watches one path. It belongs to one goroutine.
type Watcher struct {
	options Options
	watcher *fsnotify.Watcher // nil: the system gives none
	events  <-chan fsnotify.Event
	errors  <-chan error
	names   map[string]bool // links and files on the way to the path, and their directories
	inside  map[string]bool // directories in which every change counts
	blind   bool            // the system does not report all changes
}

// New returns a Watcher that does not watch yet.
func New(o Options) *Watcher {
	if o.Open == nil {
		o.Open = fsnotify.NewWatcher
	}
	o.Writing, o.Longest = cmp.Or(o.Writing, Quiet), cmp.Or(o.Longest, Longest)
	return &Watcher{options: o}
}

// Close ends the watching.
func (w *Watcher) Close() {
	if w.watcher != nil {
		w.watcher.Close()
	}
}

// Interval returns the time after which Wait returns without a change.
func (w *Watcher) Interval() time.Duration {
	if w.blind {
		return Poll
	}
	return Rescan
}

// Watch watches a path, with every link on the way to it, and everything in some directories,
// and nothing else. After an error, Wait returns every Poll.
func (w *Watcher) Watch(path string, inside ...string) (blind error) {
	defer func() { w.blind = blind != nil }()
	w.inside = make(map[string]bool, len(inside))
	for _, dir := range inside {
		w.inside[dir] = true
	}
	if w.watcher == nil {
		watcher, err := w.options.Open()
		if err != nil {
			return fmt.Errorf("%w (a limit of the host, such as fs.inotify.max_user_instances, may be too low)", err)
		}
		w.watcher, w.events, w.errors = watcher, watcher.Events, watcher.Errors
	}
	for range maxRoutes {
		way, names := route(path)
		w.names = names
		dirs := maps.Clone(way)
		maps.Copy(dirs, w.inside)
		for _, old := range w.watcher.WatchList() {
			if !dirs[old] {
				_ = w.watcher.Remove(old) // it fails for a directory that is gone
			}
		}
		blind = nil
		for dir := range dirs {
			// A directory that has just gone is no failure: its parent reports it.
			if err := w.watcher.Add(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
				blind = fmt.Errorf("%s: %w (a limit of the host, such as fs.inotify.max_user_watches, may be too low)", dir, err)
			}
		}
		// The way may have changed before the system watched it.
		if again, _ := route(path); maps.Equal(again, way) {
			break
		}
	}
	return blind
}

// route returns the directories to watch for changes of a path, through links, and the names in
// them that matter. Of a path that does not exist it returns the directory where the missing
// part would appear.
func route(path string) (dirs, names map[string]bool) {
	dirs, names = map[string]bool{}, map[string]bool{}
	at, links := string(filepath.Separator), 0
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	rest := parts(path)
	for len(rest) > 0 {
		next := filepath.Join(at, rest[0])
		rest = rest[1:]
		info, err := os.Lstat(next)
		link := err == nil && info.Mode()&os.ModeSymlink != 0
		if err != nil || link || len(rest) == 0 {
			dirs[at], names[at], names[next] = true, true, true
		}
		if err != nil {
			return dirs, names
		}
		if !link {
			at = next
			continue
		}
		target, err := os.Readlink(next)
		if links++; err != nil || links > maxLinks {
			return dirs, names
		}
		if filepath.IsAbs(target) {
			at = string(filepath.Separator)
		}
		// As in the kernel, ".." is relative to the target of a link.
		rest = append(parts(target), rest...)
	}
	return dirs, names
}

func parts(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == filepath.Separator })
}

// Wait returns after a possible change and a quiet moment, when wake has a value, or after
// Interval. soon tells that there may be a change already, woken that wake is the reason. The
// only error is that of ctx.
func (w *Watcher) Wait(ctx context.Context, soon bool, wake <-chan struct{}) (woken bool, err error) {
	rescan := time.NewTimer(w.Interval())
	defer rescan.Stop()
	var quiet, longest <-chan time.Time
	var until time.Time // when quiet is over
	changed := func(pause time.Duration) {
		if at := time.Now().Add(pause); at.After(until) {
			quiet, until = time.After(pause), at
		}
		if longest == nil {
			longest = time.After(w.options.Longest)
		}
	}
	if soon {
		changed(Quiet)
	}
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-wake:
			return true, nil
		case e := <-w.events:
			switch {
			case !w.concerns(e.Name):
			case e.Has(fsnotify.Write):
				changed(w.options.Writing)
			default:
				changed(Quiet)
			}
		case <-w.errors: //nolint:errcheck // the watcher has lost events: the caller looks for itself
			changed(Quiet)
		case <-quiet:
			return false, nil
		case <-longest:
			return false, nil
		case <-rescan.C:
			return false, nil
		}
	}
}

// concerns reports whether an event counts: the directory of the path may have many other files.
func (w *Watcher) concerns(name string) bool {
	return w.names[name] || w.inside[name] || w.inside[filepath.Dir(name)]
}
