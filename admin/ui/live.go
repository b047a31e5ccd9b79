package ui

import (
	"context"
	"fmt"
	"hash/maphash"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"meshrelay/admin"
	"meshrelay/events"
	"meshrelay/mirror"
)

// The topics of pages. A page is updated when one of its topics changes.
const (
	topicUpstreams = "upstreams"
	topicClients   = "clients"
	topicResources = "resources"
	topicConfig    = "config"
	topicEvents    = "events"
)

const (
	// maxStreams is the most open pages that are updated.
	maxStreams = 64
	// lookEvery is how often the relay checks for changes while a page is open. The checks take at most
	// 1/lookShare of the time.
	lookEvery = time.Second
	lookShare = 100
	heartbeat = 15 * time.Second
	// sendTimeout bounds the time until a page has read what is sent to it.
	sendTimeout = 30 * time.Second
)

// hints sends changed topics to open pages.
type hints struct {
	mu      sync.Mutex // guards the fields below
	streams map[chan string]bool
	opened  chan struct{} // one slot: the first page has opened
	ended   bool
}

func newHints() *hints {
	return &hints{streams: map[chan string]bool{}, opened: make(chan struct{}, 1)}
}

// open returns a stream of topics, or nil when there are too many streams or the relay ends.
func (h *hints) open() chan string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended || len(h.streams) >= maxStreams {
		return nil
	}
	c := make(chan string, 1)
	h.streams[c] = true
	mirror.Signal(h.opened)
	return c
}

// shut ends a stream.
func (h *hints) shut(c chan string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.streams[c] {
		delete(h.streams, c)
		close(c)
	}
}

func (h *hints) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.streams)
}

// tell sends topics to every stream. A stream that has not read the last hint gets both in one.
func (h *hints) tell(topics []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.streams {
		all := topics
		select {
		case waiting := <-c:
			all = strings.Fields(waiting)
			for _, topic := range topics {
				if !slices.Contains(all, topic) { // otherwise an unread hint would grow
					all = append(all, topic)
				}
			}
		default:
		}
		c <- strings.Join(all, " ") // it does not block: the slot is free, and only tell sends
	}
}

// end ends all streams.
func (h *hints) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	for c := range h.streams {
		delete(h.streams, c)
		close(c)
	}
}

// Run checks for changes while pages are open. When ctx ends, it ends all streams and returns nil.
func (p *Pages) Run(ctx context.Context) error {
	defer p.hints.end()
	looks := time.NewTimer(lookEvery)
	defer looks.Stop()
	var known map[string]uint64
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.hints.opened:
			looks.Reset(0)
		case <-looks.C:
		}
		if p.hints.count() == 0 {
			known = nil
			continue // until the next page opens
		}
		began := time.Now()
		next := p.look()
		var changed []string
		for _, topic := range []string{topicUpstreams, topicClients, topicResources, topicConfig, topicEvents} {
			if known != nil && known[topic] != next[topic] {
				changed = append(changed, topic)
			}
		}
		if known = next; len(changed) > 0 {
			p.hints.tell(changed)
		}
		looks.Reset(max(lookEvery, lookShare*time.Since(began)))
	}
}

// served returns the number of served resources.
func (p *Pages) served() (n int) {
	for _, of := range p.data.Resources.Counts() {
		n += of
	}
	return n
}

// look returns a hash of each topic, without counters that change all the time.
func (p *Pages) look() map[string]uint64 {
	var ups, clients, config maphash.Hash
	for _, h := range []*maphash.Hash{&ups, &clients, &config} {
		h.SetSeed(p.seed)
	}
	for _, u := range p.data.Upstreams() {
		fmt.Fprintln(&ups, u.Name, u.State, u.Synced, u.Stale, u.Address, u.LastError, u.RefusedTotal, u.OverLimit, len(u.Pending), len(u.NotOffered), admin.Total(u.Resources), admin.Total(u.LeftOut), admin.Total(u.Expired), u.LastUpdate.Unix())
		if u.Held != nil {
			fmt.Fprintln(&ups, u.Held.ID, u.Held.Clock)
		}
		if u.Frozen != nil {
			fmt.Fprintln(&ups, u.Frozen.Since.UnixNano(), u.Frozen.Waiting)
		}
	}
	word := func(h *maphash.Hash, s string) {
		_, _ = h.WriteString(s) // WriteString never fails
		_ = h.WriteByte(0)
	}
	for _, c := range p.data.Clients.Clients() {
		word(&clients, c.Connection)
		for _, w := range c.Types {
			state := byte(0)
			if w.Synced {
				state |= 1
			}
			if c.Held {
				state |= 2
			}
			_ = clients.WriteByte(state)
			word(&clients, w.SentNonce)
			word(&clients, w.AckedNonce)
			word(&clients, w.LastNACK)
		}
	}
	status := p.server.Readiness().Config
	fmt.Fprintln(&config, status.LastSuccess.UnixNano(), status.Error, status.NeedsRestart)
	return map[string]uint64{topicUpstreams: ups.Sum64(), topicClients: clients.Sum64(), topicResources: p.data.Changes(), topicConfig: config.Sum64(), topicEvents: p.data.Events(events.Query{Limit: 1}).Newest}
}

// live sends the changed topics to a page, as server-sent events.
func (p *Pages) live(w http.ResponseWriter, r *http.Request) {
	stream := p.hints.open()
	if stream == nil {
		w.Header().Set("Retry-After", "30")
		http.Error(w, fmt.Sprintf("%d pages are open already, or the relay ends; this page does not update itself", maxStreams), http.StatusServiceUnavailable)
		return
	}
	defer p.hints.shut(stream)
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	send := func(text string) bool {
		_ = out.SetWriteDeadline(time.Now().Add(sendTimeout)) // it fails if the page has gone, as writing does
		if _, err := fmt.Fprint(w, text); err != nil {
			return false
		}
		return out.Flush() == nil
	}
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for ok := send("retry: 3000\n\n"); ok; {
		select {
		case <-r.Context().Done():
			return
		case topics, open := <-stream:
			if !open {
				return
			}
			ok = send("event: changed\ndata: " + topics + "\n\n")
		case <-beat.C:
			ok = send(": still here\n\n")
		}
	}
}
