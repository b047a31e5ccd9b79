package state

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"meshrelay/mirror"
)

const (
	// retryFirst and retryMost bound the time between two attempts to write while they fail.
	retryFirst = time.Second
	retryMost  = 30 * time.Second
)

// errClosed is the error of a Keeper that has ended.
var errClosed = errors.New("the state is closed")

// Options are the settings of a Keeper.
type Options struct {
	// FlushInterval is the time between two flushes. Default: a second.
	FlushInterval time.Duration
	History       History
	// Retain are the sources whose state stays before Follow is called. The Keeper forgets all others,
	// and nothing when Retain is nil. SetOptions does not change it.
	Retain []string
	// Logger may be nil.
	Logger *slog.Logger
}

// Keeper writes the resources of sources to a Store. Errors of the store are in Status, metrics and
// log, and stop nobody: Load then returns nothing, and changes stay with the sources until they can be
// written.
//
// Any goroutine may call any method. A Keeper is a prometheus.Collector.
type Keeper struct {
	prometheus.Collector
	store Store
	path  string
	log   *slog.Logger

	busy    chan struct{} // holds an element while somebody writes
	closing chan struct{} // closed when the Keeper ends

	mu      sync.Mutex // guards all below
	options Options
	// kept is the known content of the store. loaded are the sources that Load has returned whole: the
	// next Source of that name begins with it.
	kept     map[string]Kept
	loaded   map[string]bool
	followed map[string]*follower
	journal  Journal // nil: none is kept
	// journalError is the error of the last write of the journal, empty after a success.
	journalError string
	// forget are the sources that the next flush removes. retained are Options.Retain and the followed
	// sources.
	forget   map[string]bool
	retained map[string]bool
	// served is set when clients were served with this state, and servedKept when the store has that.
	served, servedKept bool
	status             Status
	failures           int // in a row
	nextTry            time.Time
}

// follower is a followed source.
type follower struct {
	name   string
	source Source
	// behind is set while the store may have resources that the source does not know. It ends when the
	// source has synced.
	behind bool
}

// Status is the state of a Keeper.
type Status struct {
	Info
	// Healthy is set while the store is in use and the last flush succeeded.
	Healthy bool
	// LastError is the error of the last flush, and ErrorSince the time of the first failure in a row.
	// Both are zero after a success.
	LastError  string
	ErrorSince time.Time
	// JournalError is the error of the last write of the journal. It does not affect Healthy.
	JournalError string
}

// Open opens the store. It fails only with ErrLaterFormat. Another error is in the Keeper's Status, and
// Run tries again.
func Open(store Store, o Options) (*Keeper, error) {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	path := store.Info().Path
	k := &Keeper{
		store: store, path: path, log: o.Logger.With("path", path), busy: make(chan struct{}, 1), closing: make(chan struct{}),
		kept: map[string]Kept{}, loaded: map[string]bool{}, followed: map[string]*follower{}, forget: map[string]bool{},
	}
	if o.Retain != nil {
		k.retained = map[string]bool{}
	}
	for _, name := range o.Retain {
		k.retained[name] = true
	}
	k.Collector = metrics(k)
	k.SetOptions(o)
	err := k.open()
	if errors.Is(err, ErrLaterFormat) {
		return nil, k.failure(errors.Join(err, store.Close()))
	}
	if err != nil {
		k.note(err)
	}
	return k, nil
}

// SetOptions replaces FlushInterval, after the present interval, and History, from the next write of an
// upstream on.
func (k *Keeper) SetOptions(o Options) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.options = Options{FlushInterval: cmp.Or(max(o.FlushInterval, 0), time.Second), History: o.History}
}

func (k *Keeper) present() Options {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.options
}

func (k *Keeper) release() { <-k.busy }

func (k *Keeper) failure(err error) error { return fmt.Errorf("state %s: %w", k.path, err) }

// open opens the store, or checks it. The caller holds busy.
func (k *Keeper) open() error {
	found, err := k.store.Open()
	if found != nil {
		for _, s := range k.learn(found) {
			s.MarkAll() // without mu: the source may call the Keeper
		}
	}
	return err
}

// learn notes the content of a store. It returns the followed sources whose content differs from the noted
// one.
func (k *Keeper) learn(found *Found) (again []Source) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.served, k.servedKept = k.served || found.Served, found.Served
	before := k.kept
	k.kept, k.loaded = map[string]Kept{}, map[string]bool{}
	for name, has := range found.Sources {
		if k.retained != nil && !k.retained[name] {
			k.forget[name] = true
		}
		if !k.forget[name] {
			k.kept[name] = has
		}
	}
	for name, f := range k.followed {
		if now, was := k.kept[name], before[name]; now.Records != was.Records || now.Sum != was.Sum {
			f.behind = true
			again = append(again, f.source)
		}
	}
	return again
}

// Load returns the stored state of a source, or zero. The caller calls it before Follow. After an error
// the state is lost for this start, and Served ignores former processes.
func (k *Keeper) Load(source string) Saved {
	k.mu.Lock()
	_, has := k.kept[source]
	k.mu.Unlock()
	if !has {
		return Saved{}
	}
	saved, err := k.store.Load(source)
	if err != nil {
		k.log.Error("state not read", "upstream", source, "err", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		k.served = false
		return Saved{}
	}
	k.loaded[source] = len(saved.Unusable) == 0 // else the source replaces all that is kept
	return saved
}

// Follow writes the changes of a source from now on. It replaces an earlier source of that name.
func (k *Keeper) Follow(name string, s Source) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.followed[name] = &follower{name: name, source: s, behind: k.kept[name].Records > 0 && !k.loaded[name]}
	delete(k.loaded, name)
	if k.retained != nil {
		k.retained[name] = true
	}
}

// LoadJournal returns the stored lines of the journal, the oldest first.
func (k *Keeper) LoadJournal() [][]byte {
	k.busy <- struct{}{}
	defer k.release()
	return k.store.LoadJournal()
}

// FollowJournal writes the lines of a journal from now on.
func (k *Keeper) FollowJournal(j Journal) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.journal = j
}

// Unfollow ends Follow. The next flush removes the state of the source.
func (k *Keeper) Unfollow(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.forget[name] = true
	delete(k.followed, name)
	delete(k.kept, name)
	delete(k.retained, name)
}

// Run flushes every Options.FlushInterval until ctx ends, then once more, and closes the store. It is
// called once, and returns nil.
func (k *Keeper) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			k.end()
			return nil
		case <-time.After(k.present().FlushInterval):
		}
		if k.isDue(time.Now()) {
			_ = k.Flush(ctx) // note has reported the error, and the next flush tries again
		}
	}
}

// end flushes once more and closes the store.
func (k *Keeper) end() {
	k.busy <- struct{}{}
	defer k.release()
	if mirror.IsClosed(k.closing) {
		return
	}
	if err := k.flush(); err != nil {
		k.log.Error("last changes not written", "err", err)
	}
	close(k.closing)
	if err := k.store.Close(); err != nil {
		k.log.Warn("state not closed", "err", err)
	}
}

func (k *Keeper) isDue(now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !now.Before(k.nextTry)
}

// Flush writes all changes, and returns when they are durable. After an error, the next flush writes them
// again.
func (k *Keeper) Flush(ctx context.Context) error {
	select {
	case k.busy <- struct{}{}:
		defer k.release()
		return k.flush()
	case <-ctx.Done():
		return k.failure(context.Cause(ctx))
	}
}

// Served reports whether clients were ever served with this state: by this process, or by a former one
// unless part of its state is lost.
func (k *Keeper) Served() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.served
}

// MarkServed notes that clients are served. The next flush writes it.
func (k *Keeper) MarkServed() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.served = true
}

// History returns the revisions of a source, the newest first.
func (k *Keeper) History(source string) ([]Revision, error) {
	out, err := k.store.History(source)
	return out, of(source, err)
}

// At returns all resources of a source as of a revision. It fails with ErrUnknownRevision when the store
// does not have the revision.
func (k *Keeper) At(source string, revision uint64) ([]Record, error) {
	out, err := k.store.At(source, revision)
	return out, of(source, err)
}

func of(source string, err error) error {
	if err != nil {
		return fmt.Errorf("upstream %s: %w", source, err)
	}
	return nil
}

// Backup writes a copy of the state and of other files while the store is in use. It fails when the Keeper
// ends.
func (k *Keeper) Backup(w io.Writer, others ...Extra) error {
	err := k.store.Backup(writerFunc(func(p []byte) (int, error) {
		if mirror.IsClosed(k.closing) {
			return 0, errClosed
		}
		return w.Write(p)
	}), others...)
	if err != nil {
		return k.failure(err)
	}
	return nil
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
