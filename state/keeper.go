package state

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
)

const (
	// retryFirst and retryMost bound the time between two attempts to write while they fail.
	retryFirst = time.Second
	retryMost  = 30 * time.Second
	// maxTogether is how many changes are written in one transaction, which holds them in
	// memory: when there are more, there is one for each source.
	maxTogether = 20_000
)

// Options say where and how state is kept.
type Options struct {
	// Dir is made with mode 0700 when it is not there.
	Dir string
	// FlushInterval is how often changes are written. Default: a second.
	FlushInterval time.Duration
	// HistoryRevisions, HistoryMaxAge and HistoryMaxBytes bound the history of each source.
	// Without revisions there is none; the others are not bounds when they are 0.
	HistoryRevisions int
	HistoryMaxAge    time.Duration
	HistoryMaxBytes  int
	// Logger may be nil.
	Logger *slog.Logger
}

// Keeper keeps on disk what sources have, in one file. What is wrong with the disk is in
// Status, metrics and log, and stops nobody: Load then returns nothing, and changes stay
// with the sources until they can be written.
//
// All methods may be called from any goroutine. A Keeper is a prometheus.Collector.
type Keeper struct {
	dir, path    string
	interval     time.Duration
	bounds       bounds
	format       format
	log          *slog.Logger
	metrics      metrics
	compactAbove int64

	// busy holds an element while somebody works on the file. What follows is theirs.
	busy     chan struct{}
	lockFile *os.File
	info     fs.FileInfo // of the file in use
	live     int64       // bytes of it that were in use when it was opened
	unsure   bool        // whether the last transaction is durable
	failures int         // in a row
	closed   bool

	// db is nil when no file is in use. Who is busy replaces it. closing is closed before the
	// last time.
	db      atomic.Pointer[bbolt.DB]
	closing chan struct{}

	mu sync.Mutex // guards all below
	// kept is what the file has, as far as it is known.
	kept     map[string]*held
	followed map[string]*follower
	leaving  []*follower // that are asked once more
	// forget are the sources to be removed, and retained, unless it is nil, those that are
	// not, for the time when there is a file.
	forget, retained map[string]struct{}
	// served tells that clients were served with this state, and mark what the file tells of it.
	served    bool
	mark      servedMark
	size      int64
	status    Status
	aside     []string // files
	asideSeen time.Time
	nextTry   time.Time
}

// held is what is known of what the file has of a source.
type held struct {
	ledger
	expires time.Time // when the oldest revision is too old
	orphans [][]byte
	saved   *Saved // until Load hands it out
	handed  bool   // since when the next to follow knows what the file has
}

// follower is a source that is followed.
type follower struct {
	name   string
	source Source
	// given says that Load has handed out what the file has, so that the source's changes
	// are against that. taken says that there were changes already.
	given, taken bool
	// seen, unless it is nil, are the keys of all that the source has. When it is known that
	// they are all, what the file has besides is removed.
	seen map[string]struct{}
	// lost says that the file has lost what the source will not say again.
	lost bool
}

// Status says how a Keeper fares.
type Status struct {
	Path string `json:"path"`
	// InUse says that the file is open. Healthy says that it also can be written.
	InUse   bool `json:"inUse"`
	Healthy bool `json:"healthy"`
	// Size is in bytes.
	Size int64 `json:"size"`
	// LastFlush is when changes were last written, or found to be none.
	LastFlush time.Time `json:"lastFlush,omitzero"`
	// LastError is what is wrong now, and ErrorSince since when; empty when nothing is.
	LastError  string    `json:"lastError,omitempty"`
	ErrorSince time.Time `json:"errorSince,omitzero"`
	// Note tells what is amiss with the directory, which is used all the same.
	Note string `json:"note,omitempty"`
	// SetAside are the files that could not be used and are there still.
	SetAside []string `json:"setAside,omitempty"`
	// Unusable counts the resources of the file that this version of the relay does not
	// take.
	Unusable int `json:"unusable,omitempty"`
	// NotKept are the sources of which nothing is kept until the relay is restarted, because
	// the file was lost.
	NotKept []string `json:"notKept,omitempty"`
}

// Open opens the state, or tries to: it never fails, and does not wait for longer than about
// a second besides what reading the file takes. What it did not achieve Run tries again.
func Open(o Options) *Keeper {
	k := newKeeper(o)
	k.busy <- struct{}{}
	defer k.release()
	if err := k.attach(); err != nil {
		k.failed(err)
		if !errors.Is(err, ErrInUse) && !errors.Is(err, errNotOurs) {
			k.readOnly()
		}
	}
	k.lookAside()
	return k
}

func newKeeper(o Options) *Keeper {
	k := &Keeper{
		dir: o.Dir, path: Path(o.Dir), interval: o.FlushInterval, format: currentFormat(), log: o.Logger, compactAbove: compactAbove,
		bounds:  boundsOf(o),
		metrics: newMetrics(), busy: make(chan struct{}, 1), closing: make(chan struct{}),
		kept: map[string]*held{}, followed: map[string]*follower{}, forget: map[string]struct{}{},
	}
	if k.interval <= 0 {
		k.interval = time.Second
	}
	if k.log == nil {
		k.log = slog.New(slog.DiscardHandler)
	}
	return k
}

func (k *Keeper) newWriter() *writer { return &writer{bounds: k.bounds, now: time.Now()} }

// acquire waits until nobody works on the file.
func (k *Keeper) acquire(ctx context.Context) error {
	select {
	case k.busy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("state %s: %w", k.path, context.Cause(ctx))
	}
}

func (k *Keeper) release() { <-k.busy }

// attach takes the file into use. The caller is busy.
func (k *Keeper) attach() error {
	if err := os.MkdirAll(k.dir, 0o700); err != nil {
		return err
	}
	note, err := checkDir(k.dir)
	k.noteDir(note)
	if err != nil {
		return err
	}
	if err := k.lockDir(); err != nil {
		return err
	}
	c, err := k.prepare()
	if c != nil && err != nil {
		k.learn(c) // what could be saved is served, although it could not be written
	}
	if err != nil {
		return err
	}
	if c.err != nil {
		return c.err // of a file that was made just now
	}
	db, err := openBolt(k.path)
	if err != nil {
		return fmt.Errorf("%s: %w", k.path, err)
	}
	info, err := os.Stat(k.path)
	if err != nil {
		return errors.Join(err, closeBolt(db))
	}
	k.db.Store(db)
	k.info, k.live = info, c.live
	k.learn(c)
	return nil
}

// noteDir has Status tell what is amiss with the directory.
func (k *Keeper) noteDir(note string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.status.Note = note
}

// detach gives the file up. The caller is busy.
func (k *Keeper) detach() {
	db := k.db.Swap(nil)
	if db == nil {
		return
	}
	if err := closeBolt(db); err != nil {
		k.log.Warn("state file not closed", "path", k.path, "err", err)
	}
}

// Load returns what is kept of a source, zero when nothing is. It is to be called before
// Follow.
func (k *Keeper) Load(source string) Saved {
	k.mu.Lock()
	h := k.kept[source]
	if h == nil {
		k.mu.Unlock()
		return Saved{}
	}
	if s := h.saved; s != nil {
		h.saved = nil
		h.handed = true
		k.mu.Unlock()
		return *s
	}
	k.mu.Unlock()
	s, err := k.loadAgain(source)
	if err != nil {
		k.log.Error("state not read", "upstream", source, "err", err)
		return Saved{}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if h := k.kept[source]; h != nil {
		h.handed = true
	}
	return s
}

// Retain has all sources forgotten but some. Those that are followed stay, too.
func (k *Keeper) Retain(names []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.retained = map[string]struct{}{}
	for _, name := range names {
		k.retained[name] = struct{}{}
	}
	for name := range k.kept {
		if _, stays := k.retained[name]; !stays && k.followed[name] == nil {
			k.forget[name] = struct{}{}
			delete(k.kept, name)
		}
	}
}

// Follow keeps what a source has from now on, in the place of an earlier one of that name.
func (k *Keeper) Follow(name string, s Source) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := &follower{name: name, source: s}
	if h := k.kept[name]; h != nil {
		f.given, h.handed, h.saved = h.handed, false, nil
		if h.count > 0 && !f.given {
			f.seen = map[string]struct{}{}
		}
	}
	if before := k.followed[name]; before != nil && before.source != s {
		k.leaving = append(k.leaving, before)
	}
	k.followed[name] = f
	if k.retained != nil {
		k.retained[name] = struct{}{}
	}
}

// Unfollow ends that. What has changed until now is written still, unless the source is to be
// forgotten.
func (k *Keeper) Unfollow(name string, forget bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.followed[name]
	delete(k.followed, name)
	if !forget {
		if f != nil {
			k.leaving = append(k.leaving, f)
		}
		return
	}
	stay := k.leaving[:0]
	for _, f := range k.leaving {
		if f.name != name {
			stay = append(stay, f)
		}
	}
	clear(k.leaving[len(stay):])
	k.leaving = stay
	k.forget[name] = struct{}{}
	delete(k.kept, name)
	delete(k.retained, name)
}

// Run writes what has changed, every Options.FlushInterval, until ctx ends; then once more,
// and closes the file. It is called once, and returns nil.
func (k *Keeper) Run(ctx context.Context) error {
	k.busy <- struct{}{}
	k.compact()
	interval := k.interval
	k.release()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			k.busy <- struct{}{}
			defer k.release()
			if err := k.flush(); err != nil {
				k.log.Error("the last changes are not kept", "path", k.path, "err", err)
			}
			k.close()
			return nil
		case <-ticker.C:
		}
		if k.acquire(ctx) != nil {
			continue // ctx has ended
		}
		if k.interval != interval {
			interval = k.interval
			ticker.Reset(interval)
		}
		if k.isDue(time.Now()) {
			_ = k.flush() // it has been reported, and is tried again
		}
		k.release()
	}
}

// SetOptions takes over another FlushInterval and other bounds of the history: the former
// when the present interval is over, the latter with the next changes of a source. An error
// is that of ctx.
func (k *Keeper) SetOptions(ctx context.Context, o Options) error {
	if err := k.acquire(ctx); err != nil {
		return err
	}
	defer k.release()
	k.bounds = boundsOf(o)
	if o.FlushInterval > 0 {
		k.interval = o.FlushInterval
	}
	return nil
}

func boundsOf(o Options) bounds {
	return bounds{revisions: min(max(o.HistoryRevisions, 0), maxRevisions), age: o.HistoryMaxAge, bytes: uint64(max(o.HistoryMaxBytes, 0))}
}

func (k *Keeper) isDue(now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !now.Before(k.nextTry)
}

// Flush writes what has changed now, and returns when that is durable. An error says that it
// is not: it is tried again, as always.
func (k *Keeper) Flush(ctx context.Context) error {
	if err := k.acquire(ctx); err != nil {
		return err
	}
	defer k.release()
	return k.flush()
}

// close gives up the file and the lock. The caller is busy.
func (k *Keeper) close() {
	if k.closed {
		return
	}
	k.closed = true
	close(k.closing)
	k.detach()
	k.unlockDir()
}
