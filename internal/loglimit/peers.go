package loglimit

import (
	"sync"
	"time"
)

const (
	// peerLines is how many lines of one peer there are in each peerWindow.
	peerLines  = 5
	peerWindow = 10 * time.Second
	// mostPeers is how many peers are told apart in a peerWindow. All further ones count as one.
	mostPeers = 1024
)

// Peers bounds the lines that each peer causes. The zero value is ready, and safe for concurrent use.
type Peers struct {
	mu    sync.Mutex // guards all below
	since time.Time
	lines map[string]int
	left  int
}

// Allow reports whether one more line about a peer may be made, and how many have been left out before it.
func (p *Peers) Allow(peer string) (left int, ok bool) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.since) >= peerWindow {
		p.since, p.lines = now, map[string]int{}
	}
	if p.lines[peer] == 0 && len(p.lines) >= mostPeers {
		peer = ""
	}
	if p.lines[peer]++; p.lines[peer] > peerLines {
		p.left++
		return 0, false
	}
	left, p.left = p.left, 0
	return left, true
}
