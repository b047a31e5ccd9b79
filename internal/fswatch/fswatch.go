// Package fswatch reports possible changes of a file, or of files in directories. The path may lead
// through links, and need not exist yet.
//
// The package must not read the files.
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
	// maxLinks limits the links in a path. The kernel has the same limit.
	maxLinks = 40
	// maxRoutes limits the attempts to watch a path that changes meanwhile.
	maxRoutes = 10
)

// The times of every Watcher.
const (
	// Wait returns when there was no change for Quiet. It returns at the latest Longest after the first
	// change.
	Quiet   = 100 * time.Millisecond
	Longest = time.Second
	// Wait also returns without a change: after Rescan, because network file systems do not report all
	// changes, or after Poll if the system reports none.
	Rescan = time.Minute
	Poll   = 5 * time.Second
)

// Options are the settings of one Watcher. The zero value is the usual one.
type Options struct {
	// After a write in place, Writing replaces the constant Quiet, and Longest the constant Longest. They are
	// for a file of which half may be valid. 0 means the usual times.
	Writing, Longest time.Duration
	// Open creates the system's watcher; nil means fsnotify.NewWatcher.
	Open func() (*fsnotify.Watcher, error)
}

// Watcher watches one path. It belongs to one goroutine.
type Watcher struct {
	options Options
	watcher *fsnotify.Watcher // nil if Open failed
	events  <-chan fsnotify.Event
	errors  <-chan error
	names   map[string]bool // links, files and directories that the path leads through
	inside  map[string]bool // directories in which every change counts
	blind   bool            // the system does not report all changes
}

// New returns a Watcher that watches nothing until Watch is called.
func New(o Options) *Watcher {
	if o.Open == nil {
		o.Open = fsnotify.NewWatcher
	}
	o.Writing, o.Longest = cmp.Or(o.Writing, Quiet), cmp.Or(o.Longest, Longest)
	return &Watcher{options: o}
}

// Close stops watching.
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

// Watch watches a path, every link that it leads through, and all files in the directories inside.
// It replaces the watches of earlier calls. After an error, Wait returns every Poll.
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
				_ = w.watcher.Remove(old) // fails if the directory is gone
			}
		}
		blind = nil
		for dir := range dirs {
			// A directory that has just been removed is not an error: the parent's watch reports it.
			if err := w.watcher.Add(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
				blind = fmt.Errorf("%s: %w (a limit of the host, such as fs.inotify.max_user_watches, may be too low)", dir, err)
			}
		}
		// The path may have changed before the system watched it.
		if again, _ := route(path); maps.Equal(again, way) {
			break
		}
	}
	return blind
}

// route returns the directories to watch for changes of a path, and the names in them that matter.
// It follows links. For a path that does not exist, it returns the directory in which the missing
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
		// The kernel resolves ".." from the target of a link.
		rest = append(parts(target), rest...)
	}
	return dirs, names
}

func parts(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == filepath.Separator })
}

// Wait returns after a possible change followed by a quiet time, when wake has a value, or after
// Interval. Set soon if there may be a change already. woken is true if wake had a value. The only
// error is that of ctx.
func (w *Watcher) Wait(ctx context.Context, soon bool, wake <-chan struct{}) (woken bool, err error) {
	rescan := time.NewTimer(w.Interval())
	defer rescan.Stop()
	var quiet, longest <-chan time.Time
	var until time.Time // end of the quiet time
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
		case <-w.errors: //nolint:errcheck // the watcher has lost events: return, and the caller checks the file
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

// concerns reports whether an event is about the path. Its directory may have many other files.
func (w *Watcher) concerns(name string) bool {
	return w.names[name] || w.inside[name] || w.inside[filepath.Dir(name)]
}
