package config

import (
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
	// watchQuiet is how long the file must not have changed before it is read, so that it is
	// not read while it is being written; watchLongest bounds the wait for that.
	watchQuiet   = 100 * time.Millisecond
	watchLongest = 5 * time.Second
	// watchWriting is watchQuiet for a file that is written in place, and not put there as a
	// whole: half of a list is as good a config as all of it.
	watchWriting = time.Second
	// watchPoll is how often the file is looked at where the system does not tell of
	// changes, and watchRescan how often in case it does not tell of all (network file
	// systems do not).
	watchPoll   = 10 * time.Second
	watchRescan = time.Minute
	// maxLinks is how many links a path may have, as in the kernel.
	maxLinks = 40
	// maxRoutes bounds how often the way to a file is found anew while it changes.
	maxRoutes = 10
)

// happening is what ends a wait.
type happening int

const (
	stopped happening = iota // the context has ended
	stirred                  // the file may have changed
	asked                    // somebody wants it to be read
)

// follow tells when one file may have changed: it, or a link on the way to it. It belongs to
// one goroutine.
type follow struct {
	path    string
	open    func() (*fsnotify.Watcher, error)
	watcher *fsnotify.Watcher // nil: the system gives none
	events  <-chan fsnotify.Event
	errors  <-chan error
	names   map[string]bool // the links and files on the way, and where they stand
	blind   error           // why not all is watched
}

func newFollow(path string) follow { return follow{path: path, open: fsnotify.NewWatcher} }

func (f *follow) close() {
	if f.watcher != nil {
		f.watcher.Close()
	}
}

// every is how often to look without being told.
func (f *follow) every() time.Duration {
	if f.blind != nil {
		return watchPoll
	}
	return watchRescan
}

// cover watches where the file is now. It returns why that can not be done, once.
func (f *follow) cover() error {
	was := f.blind
	f.blind = f.watchAll()
	if f.blind != nil && was == nil {
		return f.blind
	}
	return nil
}

func (f *follow) watchAll() error {
	if f.watcher == nil {
		watcher, err := f.open()
		if err != nil {
			return fmt.Errorf("%w (a limit of the host, such as fs.inotify.max_user_instances, may be too low)", err)
		}
		f.watcher, f.events, f.errors = watcher, watcher.Events, watcher.Errors
	}
	var blind error
	for range maxRoutes {
		dirs, names := route(f.path)
		f.names = names
		for _, old := range f.watcher.WatchList() {
			if !dirs[old] {
				// It may be gone by itself, and then this is an error of no interest.
				_ = f.watcher.Remove(old)
			}
		}
		blind = nil
		for dir := range dirs {
			// A directory that has just gone is no failure: what it stood in tells of it.
			if err := f.watcher.Add(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
				blind = fmt.Errorf("%s: %w (a limit of the host, such as fs.inotify.max_user_watches, may be too low)", dir, err)
			}
		}
		// What changed the way before it was watched has told nobody.
		if again, _ := route(f.path); maps.Equal(again, dirs) {
			break
		}
	}
	return blind
}

// route returns the directories to watch for changes of what a path leads to, by way of
// links, and the names in them that matter. Of what does not exist it is the directory in
// which that would appear.
func route(path string) (dirs, names map[string]bool) {
	dirs, names = map[string]bool{}, map[string]bool{}
	at, links := string(filepath.Separator), 0
	rest := parts(absolute(path))
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
		// From here on, as the kernel does it: ".." is of where a link leads to.
		rest = append(parts(target), rest...)
	}
	return dirs, names
}

// parts returns the elements of a path.
func parts(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == filepath.Separator })
}

// wait returns when the file may have changed, which it may have already if soon is said, and
// has been quiet for a moment, or when somebody asks for it to be read.
func (f *follow) wait(ctx context.Context, soon bool, trigger <-chan struct{}, asks <-chan chan<- error) (happening, chan<- error) {
	rescan := time.NewTimer(f.every())
	defer rescan.Stop()
	var quiet, longest <-chan time.Time
	var until time.Time // when quiet is over
	stir := func(pause time.Duration) {
		if at := time.Now().Add(pause); at.After(until) {
			quiet, until = time.After(pause), at
		}
		if longest == nil {
			longest = time.After(watchLongest)
		}
	}
	if soon {
		stir(watchQuiet)
	}
	for {
		select {
		case <-ctx.Done():
			return stopped, nil
		case <-trigger:
			return asked, nil
		case answer := <-asks:
			return asked, answer
		case e := <-f.events:
			switch {
			case !f.names[e.Name]:
			case e.Has(fsnotify.Write):
				stir(watchWriting)
			default:
				stir(watchQuiet)
			}
		case <-f.errors: //nolint:errcheck // whatever it is, the answer is the same
			stir(watchQuiet) // events were lost, or a watch: look for ourselves
		case <-quiet:
			return stirred, nil
		case <-longest:
			return stirred, nil
		case <-rescan.C:
			stir(watchQuiet)
		}
	}
}
