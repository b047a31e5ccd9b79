package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// fileQuiet and fileLongest bound how long a change of a file waits for others.
	fileQuiet   = 100 * time.Millisecond
	fileLongest = time.Second
	// fileRescan is how often everything is read again, in case the file system does
	// not tell of changes (network file systems do not), and fileBlindRescan how often
	// when it is known that it will not.
	fileRescan      = time.Minute
	fileBlindRescan = 5 * time.Second
)

// watch tells when something may have changed at a path. It belongs to one goroutine.
type watch struct {
	root    string
	parent  string
	watcher *fsnotify.Watcher // nil: the system gives none
	events  <-chan fsnotify.Event
	errors  <-chan error
	blind   error           // why not all is watched
	covered map[string]bool // directories of which every event counts
}

// newWatch never fails: where the system can not watch, wait returns every few
// seconds.
func newWatch(root string) *watch {
	w := &watch{root: root, parent: filepath.Dir(root)}
	var err error
	if w.watcher, err = fsnotify.NewWatcher(); err != nil {
		w.watcher = nil
		w.blind = fmt.Errorf("files are not watched but read every %v: %w (a limit of the host, such as fs.inotify.max_user_instances, may be too low)", fileBlindRescan, err)
		return w
	}
	w.events, w.errors = w.watcher.Events, w.watcher.Errors
	return w
}

func (w *watch) close() {
	if w.watcher != nil {
		w.watcher.Close()
	}
}

// cover watches the directories, and where the root itself stands: links are changed
// and files replaced there. It forgets all others. It returns why not all can be
// watched, or nil.
func (w *watch) cover(dirs []string) error {
	w.covered = make(map[string]bool, len(dirs))
	for _, dir := range dirs {
		w.covered[dir] = true
	}
	if w.watcher == nil {
		return w.blind
	}
	for _, old := range w.watcher.WatchList() {
		if old != w.parent && !w.covered[old] {
			// It may be gone by itself, and then this is an error of no interest.
			_ = w.watcher.Remove(old)
		}
	}
	w.blind = nil
	add := func(dir string) {
		// A directory that is gone is no failure: its parent tells when it is back.
		if err := w.watcher.Add(dir); err != nil && !errors.Is(err, os.ErrNotExist) && w.blind == nil {
			w.blind = fmt.Errorf("%s is not watched but read every %v: %w (a limit of the host, such as fs.inotify.max_user_watches, may be too low)", dir, fileBlindRescan, err)
		}
	}
	add(w.parent)
	for _, dir := range dirs {
		add(dir)
	}
	return w.blind
}

// wait returns when something may have changed and has been quiet for a moment, or
// soon when that is known already, or when something comes from now. Its only error is that
// of ctx.
func (w *watch) wait(ctx context.Context, soon bool, now <-chan struct{}) error {
	every := fileRescan
	if w.blind != nil {
		every = fileBlindRescan
	}
	rescan := time.NewTimer(every)
	defer rescan.Stop()
	var quiet, longest <-chan time.Time
	stir := func() {
		quiet = time.After(fileQuiet)
		if longest == nil {
			longest = time.After(fileLongest)
		}
	}
	if soon {
		stir()
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-w.events:
			if w.concerns(e.Name) {
				stir()
			}
		case <-w.errors: //nolint:errcheck // whatever it is, the answer is the same
			stir() // events were lost, or a watch: look for ourselves
		case <-now:
			return nil
		case <-quiet:
			return nil
		case <-longest:
			return nil
		case <-rescan.C:
			return nil
		}
	}
}

// concerns reports whether an event for name may be about our files. The directory in
// which the root stands may be a busy one that is none of our business.
func (w *watch) concerns(name string) bool {
	if name == w.root || w.covered[name] || w.covered[filepath.Dir(name)] {
		return true
	}
	// The root may be a link by way of one beside it, as in a mounted ConfigMap.
	info, err := os.Lstat(w.root)
	return err != nil || info.Mode()&os.ModeSymlink != 0
}
