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
)

const (
	// retryFirst and retryMost bound the time between two attempts to write while they fail.
	retryFirst = time.Second
	retryMost  = 30 * time.Second
)

// errClosed is the error of a Keeper that has ended.
var errClosed = errors.New("the state is closed")

// Options tell how state is kept.
type Options struct {
	// FlushInterval is how often changes are written. Default: a second.
	FlushInterval time.Duration
	History       History
	// Retain are the sources that are kept although nobody follows them yet: all others are
	// forgotten. Nil: none is. SetOptions does not change it.
	Retain []string
	// Logger may be nil.
	Logger *slog.Logger
}

// Keeper keeps in a Store what sources have. What is wrong with the store is in Status, metrics
// and log, and stops nobody: Load then returns nothing, and changes stay with the sources until
// they can be written.
//
// All methods may be called from any goroutine. A Keeper is a prometheus.Collector.
type Keeper struct {
	store   Store
	path    string
	log     *slog.Logger
	metrics metrics

	busy    chan struct{} // holds an element while somebody writes
	closing chan struct{} // closed when the Keeper ends

	mu      sync.Mutex // guards all below
	options Options
	// kept is what the store has, as far as it is known. loaded are the sources that Load was
	// asked for: the next Source of that name knows what is kept.
	kept     map[string]Kept
	loaded   map[string]bool
	followed map[string]*follower
	journal  Journal // nil: none is kept
	// journalError is why that can not be written, empty while it can.
	journalError string
	// forget are the sources to be removed when there is a store. retained are Options.Retain and
	// those that are followed.
	forget   map[string]bool
	retained map[string]bool
	// served tells that clients were served with this state, and servedKept that the store
	// tells so.
	served, servedKept bool
	status             Status
	failures           int // in a row
	nextTry            time.Time
}

// follower is a source that is followed.
type follower struct {
	name   string
	source Source
	// behind tells that the store may have what the source does not know of. It goes when the
	// source has synced.
	behind bool
}

// Status tells how a Keeper fares.
type Status struct {
	Info
	// Healthy tells that the store is in use and can be written.
	Healthy bool
	// LastFlush is when changes were last written, or found to be none.
	LastFlush time.Time
	// LastError is what is wrong now, and ErrorSince since when; empty when nothing is.
	LastError  string
	ErrorSince time.Time
	// JournalError is why the journal can not be written, empty while it can. It is no part of the state.
	JournalError string
}

// Open opens the store. It fails only with ErrLaterFormat. Another error is in the Keeper's Status, and
// Run tries again.
func Open(store Store, o Options) (*Keeper, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
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
	k.metrics = newMetrics(k)
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

// SetOptions takes over another FlushInterval, when the present one is over, and other bounds of
// the history, with the next upstream that is written.
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

// open opens the store, or checks it. The caller is busy.
func (k *Keeper) open() error {
	found, err := k.store.Open()
	if found != nil {
		for _, s := range k.learn(found) {
			s.MarkAll() // without a lock, because it is not ours
		}
	}
	return err
}

// learn takes in what a store has. It returns the sources that expect other content in
// the store.
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

// Load returns the state that is kept of a source, zero when there is none. The caller calls it
// before Follow. After an error the source is lost for this start: Served does not report what a
// former process has served.
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

// Follow keeps what a source has from now on, in the place of an earlier one of that name.
func (k *Keeper) Follow(name string, s Source) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.followed[name] = &follower{name: name, source: s, behind: k.kept[name].Records > 0 && !k.loaded[name]}
	delete(k.loaded, name)
	if k.retained != nil {
		k.retained[name] = true
	}
}

// LoadJournal returns the lines of the journal that are kept, the oldest first.
func (k *Keeper) LoadJournal() [][]byte {
	k.busy <- struct{}{}
	defer k.release()
	return k.store.LoadJournal()
}

// FollowJournal keeps the lines of a journal from now on.
func (k *Keeper) FollowJournal(j Journal) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.journal = j
}

// Unfollow ends that, and has the source forgotten.
func (k *Keeper) Unfollow(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.forget[name] = true
	delete(k.followed, name)
	delete(k.kept, name)
	delete(k.retained, name)
}

// Run writes what has changed, every Options.FlushInterval, until ctx ends; then once more,
// and closes the store. It is called once, and returns nil.
func (k *Keeper) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			k.end()
			return nil
		case <-time.After(k.present().FlushInterval):
		}
		if k.isDue(time.Now()) {
			_ = k.Flush(ctx) // it has been reported, and is tried again
		}
	}
}

// end writes what has changed once more, and gives up the store.
func (k *Keeper) end() {
	k.busy <- struct{}{}
	defer k.release()
	if k.closed() {
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

// Flush writes what has changed now, and returns when that is durable. After an error it is
// not, and is tried again, as always.
func (k *Keeper) Flush(ctx context.Context) error {
	select {
	case k.busy <- struct{}{}:
		defer k.release()
		return k.flush()
	case <-ctx.Done():
		return k.failure(context.Cause(ctx))
	}
}

// Served reports whether clients were ever served with this state: by this process, or by a
// former one, unless what that had is damaged or could not be read.
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

// At returns all that a source had as of a revision. It fails with ErrUnknownRevision when there
// is no such revision, or none any more.
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

// Backup writes a copy of what is kept, and other files with it, while the store is in use. It ends when
// the Keeper does.
func (k *Keeper) Backup(w io.Writer, others ...Extra) error {
	err := k.store.Backup(writerFunc(func(p []byte) (int, error) {
		if k.closed() {
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

func (k *Keeper) closed() bool {
	select {
	case <-k.closing:
		return true
	default:
		return false
	}
}
