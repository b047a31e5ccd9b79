package main

import (
	"sync"
	"time"
)

// ledger remembers how far clients have come with each kind, and when. It is safe for use by
// several goroutines.
type ledger struct {
	mu     sync.Mutex // guards all below
	byKind map[int][]settled
}

// settled records that a client had taken a kind as of a commit while the source was at another.
type settled struct {
	commit, now uint64
	at          time.Time
}

// settledKept bounds what a ledger remembers of one kind.
const settledKept = 4096

func newLedger() *ledger { return &ledger{byKind: map[int][]settled{}} }

func (l *ledger) add(kind int, commit, now uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.byKind[kind]
	if n := len(list); n > 0 && list[n-1].commit >= commit {
		return
	}
	if list = append(list, settled{commit, now, time.Now()}); len(list) > settledKept {
		list = append(list[:0:0], list[settledKept/2:]...)
	}
	l.byKind[kind] = list
}

// forget forgets what clients have taken since a time: who had taken it was killed.
func (l *ledger) forget(since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for kind, list := range l.byKind {
		n := len(list)
		for n > 0 && list[n-1].at.After(since) {
			n--
		}
		l.byKind[kind] = list[:n]
	}
}

// since returns where the source was when a client had first taken a kind as of a commit or
// a later one, false while none has.
func (l *ledger) since(kind int, commit uint64) (now uint64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.byKind[kind] {
		if s.commit >= commit {
			return s.now, true
		}
	}
	return 0, false
}

// before returns the newest commit of a kind that a client had taken before a time.
func (l *ledger) before(kind int, at time.Time) (commit uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.byKind[kind] {
		if s.at.After(at) {
			break
		}
		commit = s.commit
	}
	return commit
}

// behind returns the age that content as of a commit may have: how long before a time a client had
// taken the last of a kind before that commit.
func (l *ledger) behind(kind int, until uint64, at time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.byKind[kind] {
		if s.commit >= until && s.at.Before(at) {
			return at.Sub(s.at)
		}
	}
	return 0
}
