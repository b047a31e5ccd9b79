package config_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"

	"meshrelay/config"
	"meshrelay/internal/fswatch"
	"meshrelay/internal/testing/await"
)

// configNamed is a config that is told by its node id.
func configNamed(id string) string { return withUpstream + "node: {id: " + id + "}\n" }

// watching is a Watcher that runs on a file with the node id "first".
type watching struct {
	*config.Watcher
	t    *testing.T
	path string
	// applied are the ids of the configs that were taken over. What is in fail is not.
	applied chan string
	fail    map[string]error
}

// watch runs a Watcher on a path, at which there is a config named first. A file that is written in place is read as
// soon as any other.
func watch(t *testing.T, path string) *watching {
	t.Helper()
	w := config.NewWatcher(path, sources()...)
	w.Follow(fswatch.Options{})
	return run(t, path, w)
}

func run(t *testing.T, path string, of *config.Watcher) *watching {
	t.Helper()
	w := &watching{Watcher: of, t: t, path: path, applied: make(chan string, 100), fail: map[string]error{}}
	if cfg, err := w.Load(); err != nil || cfg.Node.ID != "first" {
		t.Fatal(cfg, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- w.Run(ctx, slog.New(slog.DiscardHandler), func(_ context.Context, cfg *config.Config) ([]string, error) {
			w.applied <- cfg.Node.ID
			return []string{"node.id"}, w.fail[cfg.Node.ID]
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := w.Reload(context.Background()); err == nil || !strings.Contains(err.Error(), "shutting down") {
			t.Errorf("after the end: %v", err)
		}
	})
	return w
}

// want waits until a config has been taken over, and it is the first since the last call.
func (w *watching) want(id string) {
	w.t.Helper()
	if got := await.Value(w.t, id+" is taken over", w.applied); got != id {
		w.t.Fatalf("%q was taken over, want %q; %+v", got, id, w.Status())
	}
}

// wantNone checks that nothing has been taken over: an answer to what is asked now comes after
// all that was noticed before.
func (w *watching) wantNone(in string) {
	w.t.Helper()
	if err := w.Reload(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	w.want(in)
}

// until waits for a status.
func (w *watching) until(what string, ok func(config.ReloadStatus) bool) {
	w.t.Helper()
	await.Until(w.t, what, func() bool { return ok(w.Status()) }, func() any { return w.Status() })
}

func failing(s config.ReloadStatus) bool { return s.Error != "" }
func fine(s config.ReloadStatus) bool    { return s.Error == "" }

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func TestAChangeOfTheFileIsTakenOver(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, path, text string){
		"written in place": write,
		"replaced": func(t *testing.T, path, text string) {
			write(t, path+".new", text)
			must(t, os.Rename(path+".new", path))
		},
		"moved away by an editor": func(t *testing.T, path, text string) {
			must(t, os.Rename(path, path+"~"))
			write(t, path, text)
		},
		"removed and made again": func(t *testing.T, path, text string) {
			must(t, os.Remove(path))
			write(t, path, text)
		},
		"its directory replaced": func(t *testing.T, path, text string) {
			dir := filepath.Dir(path)
			must(t, os.RemoveAll(dir+".old"), os.Rename(dir, dir+".old"), os.Mkdir(dir, 0o700))
			write(t, path, text)
		},
		"its directory removed and made again": func(t *testing.T, path, text string) {
			dir := filepath.Dir(path)
			must(t, os.RemoveAll(filepath.Dir(dir)), os.MkdirAll(dir, 0o700))
			write(t, path, text)
		},
		"made a link": func(t *testing.T, path, text string) {
			target := filepath.Join(t.TempDir(), "target.yaml")
			write(t, target, text)
			must(t, os.Remove(path), os.Symlink(target, path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "etc", "relay")
			must(t, os.MkdirAll(dir, 0o700))
			path := filepath.Join(dir, "relay.yaml")
			write(t, path, configNamed("first"))
			w := watch(t, path)
			for _, id := range []string{"second", "third"} {
				change(t, path, configNamed(id))
				w.want(id)
				w.until("success", func(s config.ReloadStatus) bool { return fine(s) && slices.Equal(s.NeedsRestart, []string{"node.id"}) })
			}
			if s := w.Status(); s.LastSuccess.Before(s.LastAttempt) || s.LastSuccess.IsZero() {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestAConfigMapIsFollowed: the kubelet writes a new directory and then replaces the link
// ..data, through which all files are reached.
func TestAConfigMapIsFollowed(t *testing.T) {
	dir := t.TempDir()
	publish := func(version, id string) {
		must(t, os.Mkdir(filepath.Join(dir, version), 0o700))
		write(t, filepath.Join(dir, version, "relay.yaml"), configNamed(id))
		must(t, os.Symlink(version, filepath.Join(dir, "..data_tmp")), os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	publish("..1", "first")
	must(t, os.Symlink("..data/relay.yaml", filepath.Join(dir, "relay.yaml")))
	w := watch(t, filepath.Join(dir, "relay.yaml"))
	for i, id := range []string{"second", "third", "fourth"} {
		publish(fmt.Sprintf("..%d", i+2), id)
		must(t, os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..%d", i+1))))
		w.want(id)
	}
}

// TestLinksAreFollowedToTheirEnd: a change anywhere on the way to the file counts.
func TestLinksAreFollowedToTheirEnd(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"etc", "v1", "v2", "far"} {
		must(t, os.Mkdir(filepath.Join(root, dir), 0o700))
	}
	write(t, filepath.Join(root, "far", "relay.yaml"), configNamed("first"))
	must(t,
		os.Symlink(filepath.Join(root, "far", "relay.yaml"), filepath.Join(root, "v1", "relay.yaml")),
		os.Symlink("v1", filepath.Join(root, "now")),
		os.Symlink("../now/relay.yaml", filepath.Join(root, "etc", "relay.yaml")))
	w := watch(t, filepath.Join(root, "etc", "relay.yaml"))
	write(t, filepath.Join(root, "far", "relay.yaml"), configNamed("far-away"))
	w.want("far-away")
	write(t, filepath.Join(root, "v2", "relay.yaml"), configNamed("v2"))
	must(t, os.Symlink("v2", filepath.Join(root, "next")), os.Rename(filepath.Join(root, "next"), filepath.Join(root, "now")))
	w.want("v2")
	write(t, filepath.Join(root, "v2", "relay.yaml"), configNamed("v2-again"))
	w.want("v2-again")
}

func TestTheSameContentIsNotTakenOverAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "relay.yaml")
	write(t, path, configNamed("first"))
	w := watch(t, path)
	write(t, path, configNamed("first"))
	write(t, path+".new", configNamed("first"))
	must(t, os.Rename(path+".new", path))
	write(t, path, configNamed("second"))
	w.want("second")
	w.wantNone("second") // but when it is asked for
}

func TestAFileThatIsWrongChangesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "relay.yaml")
	write(t, path, configNamed("first"))
	w := watch(t, path)
	loaded, hash := w.Status().LastSuccess, fmt.Sprintf("%x", sha256.Sum256([]byte(configNamed("first"))))[:12]
	inForce := func(s config.ReloadStatus) bool {
		return s.LastSuccess.Equal(loaded) && s.File == path && s.Hash == hash
	}

	// Wrong, gone, and back as it was: nothing is taken over, or has to be.
	write(t, path, "nonsense: 1\nmore: 2\n")
	w.until("an error", func(s config.ReloadStatus) bool { return strings.Contains(s.Error, "nonsense") }) // it may be read while it is empty
	s := w.Status()
	if !inForce(s) || s.FailingSince.IsZero() || s.FailingSince.Before(loaded) ||
		!strings.Contains(s.Error, path+":1: nonsense: unknown field") || !strings.Contains(s.Error, path+":2: more: unknown field") || strings.Contains(s.Error, "\n") {
		t.Errorf("%+v", s)
	}
	must(t, os.Remove(path))
	w.until("another error", func(s config.ReloadStatus) bool { return strings.Contains(s.Error, "no such file") })
	if got := w.Status().FailingSince; !got.Equal(s.FailingSince) {
		t.Errorf("it has been failing since %v, not since %v", s.FailingSince, got)
	}
	write(t, path, configNamed("first"))
	w.until("success", fine)
	if s := w.Status(); !inForce(s) || !s.FailingSince.IsZero() {
		t.Errorf("%+v", s)
	}
	w.wantNone("first")
}

func TestWhatCouldNotBeTakenOverIsTriedAgainWhenAsked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "relay.yaml")
	write(t, path, configNamed("first"))
	w := watch(t, path)
	w.fail["second"] = errors.New("upstream east: no such key file")
	write(t, path, configNamed("second"))
	w.want("second")
	w.until("an error", failing)
	if err := w.Reload(t.Context()); !errors.Is(err, w.fail["second"]) {
		t.Errorf("%v", err)
	}
	w.want("second")
	// The first one may have been replaced in part, so it has to be taken over as well.
	write(t, path, configNamed("first"))
	w.want("first")
	w.until("success", fine)
	w.Trigger()
	w.want("first")
	write(t, path, "nonsense: 1\n")
	if err := w.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "nonsense: unknown field") {
		t.Errorf("%v", err)
	}
}

func TestAChangeBetweenLoadAndRunIsNotMissed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "relay.yaml")
	write(t, path, configNamed("first"))
	w := config.NewWatcher(path, sources()...)
	if _, err := w.Load(); err != nil {
		t.Fatal(err)
	}
	write(t, path, configNamed("second"))
	ctx, cancel := context.WithCancel(t.Context())
	got := ""
	err := w.Run(ctx, slog.New(slog.DiscardHandler), func(_ context.Context, cfg *config.Config) ([]string, error) {
		got = cfg.Node.ID
		cancel()
		return nil, nil
	})
	if err != nil || got != "second" {
		t.Errorf("%q %v", got, err)
	}
}

func TestAReloadThatIsNotAnsweredInTimeIsAnError(t *testing.T) {
	w := config.NewWatcher("none.yaml") // it does not run
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Reload(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	w.Trigger()
	w.Trigger() // never blocks
}

func TestWithoutInotifyTheFileIsPolled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "relay.yaml")
	write(t, path, configNamed("first"))
	synctest.Test(t, func(t *testing.T) {
		w := config.NewWatcher(path, sources()...)
		tries := 0
		w.Follow(fswatch.Options{Open: func() (*fsnotify.Watcher, error) { tries++; return nil, errors.New("no more instances") }})
		if _, err := w.Load(); err != nil {
			t.Fatal(err)
		}
		var log strings.Builder
		applied := make(chan string, 10)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- w.Run(ctx, slog.New(slog.NewTextHandler(&log, nil)), func(_ context.Context, cfg *config.Config) ([]string, error) {
				applied <- cfg.Node.ID
				return nil, nil
			})
		}()
		start := time.Now()
		await.Pass(2 * config.Quiet) // by then it has been looked at first
		write(t, path, configNamed("second"))
		if got := <-applied; got != "second" || time.Since(start) != config.Quiet+config.Poll {
			t.Errorf("%q after %v", got, time.Since(start))
		}
		await.Pass(10 * config.Poll)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if tries < 5 || strings.Count(log.String(), "no more instances") != 1 {
			t.Errorf("tried %d times, and logged:\n%s", tries, log.String())
		}
	})
}

func TestWhatIsSaidOfAFileIsBounded(t *testing.T) {
	in := strings.Builder{}
	in.WriteString(withUpstream)
	for i := range 1000 {
		fmt.Fprintf(&in, "field%d: 1\n", i)
	}
	_, err := parse("relay.yaml", []byte(in.String()))
	text := strings.Join(config.Brief(err), "; ")
	if len(text) > config.MaxReasonBytes+len("…; and 990 more") || !strings.Contains(text, "field5:") || !strings.HasSuffix(text, "; and 990 more") {
		t.Errorf("%d bytes: %s", len(text), text)
	}
	if !strings.HasSuffix(config.Brief(errors.New(strings.Repeat("ä", config.MaxReasonBytes)))[0], "…") {
		t.Error("a long text is not cut")
	}
}

// TestWhatCouldNotBeTakenOverIsTriedAgainByItself: the files that a config names can come later
// than the config, from another volume. The log names a missing file once.
func TestWhatCouldNotBeTakenOverIsTriedAgainByItself(t *testing.T) {
	path := filepath.Join(t.TempDir(), "relay.yaml")
	write(t, path, configNamed("first"))
	synctest.Test(t, func(t *testing.T) {
		w := config.NewWatcher(path, sources()...)
		// Neither does inotify belong into a bubble, nor would it tell.
		w.Follow(fswatch.Options{Open: func() (*fsnotify.Watcher, error) { return nil, errors.New("none") }})
		if _, err := w.Load(); err != nil {
			t.Fatal(err)
		}
		write(t, path, configNamed("second"))
		var log strings.Builder
		errs := []string{"no CA file", "no CA file", "no CA file", "no key file", "no CA file", ""}
		var attempts []time.Time
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- w.Run(ctx, slog.New(slog.NewTextHandler(&log, nil)), func(context.Context, *config.Config) ([]string, error) {
				attempts = append(attempts, time.Now())
				if text := errs[min(len(attempts), len(errs))-1]; text != "" {
					return nil, errors.New(text)
				}
				return nil, nil
			})
		}()
		await.Pass(time.Hour)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if len(attempts) != len(errs) {
			t.Fatalf("%d attempts, want %d: until it can be taken over, and no more", len(attempts), len(errs))
		}
		for i := range attempts[1:] {
			if d := attempts[i+1].Sub(attempts[i]); d != config.Poll {
				t.Errorf("attempt %d comes %v after the one before it", i+2, d)
			}
		}
		if s := w.Status(); s.Error != "" || !s.FailingSince.IsZero() || !s.LastSuccess.Equal(attempts[len(attempts)-1]) {
			t.Errorf("%+v", s)
		}
		if n := strings.Count(log.String(), "not reloaded"); n != 3 {
			t.Errorf("logged %d times why, want once for each reason:\n%s", n, log.String())
		}
	})
}

// TestHalfAFileIsNotTakenOver, which may be right in itself: a file that is written in place is not read before it has
// been left alone for a while.
func TestHalfAFileIsNotTakenOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "relay.yaml")
	write(t, path, configNamed("first"))
	w := run(t, path, config.NewWatcher(path, sources()...))
	w.wantNone("first") // from here on changes are told
	began := time.Now()
	write(t, path, configNamed("second"))
	if w.want("second"); time.Since(began) < config.Writing {
		t.Errorf("it was read after %v", time.Since(began))
	}
}
