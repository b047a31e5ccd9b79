package ui

import (
	"context"
	"fmt"
	"hash/maphash"
	"maps"
	"net/http"
	"strings"
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

// looked is what the topics were at a look.
type looked struct {
	topics map[string]uint64 // hashes; nil while no page is open
	ended  bool              // the relay ends
	newer  chan struct{}     // closed when there is another look
}

// changed returns the topics that are not as they were before.
func (l *looked) changed(before *looked) (topics []string) {
	for _, topic := range []string{topicUpstreams, topicClients, topicResources, topicConfig, topicEvents} {
		if before.topics != nil && before.topics[topic] != l.topics[topic] {
			topics = append(topics, topic)
		}
	}
	return topics
}

// tell makes a look the last one, if it differs, and wakes all streams.
func (p *Pages) tell(topics map[string]uint64, ended bool) {
	if last := p.last.Load(); ended || !maps.Equal(last.topics, topics) {
		p.last.Store(&looked{topics, ended, make(chan struct{})})
		close(last.newer)
	}
}

// Run checks for changes while pages are open. When ctx ends, it ends all streams and returns nil.
func (p *Pages) Run(ctx context.Context) error {
	defer p.tell(nil, true)
	looks := time.NewTimer(lookEvery)
	defer looks.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.opened:
		case <-looks.C:
		}
		if p.streams.Load() == 0 {
			p.tell(nil, false)
			continue // until the next page opens
		}
		began := time.Now()
		p.tell(p.look(), false)
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
	seen := p.last.Load()
	defer p.streams.Add(-1)
	if p.streams.Add(1) > maxStreams || seen.ended {
		w.Header().Set("Retry-After", "30")
		http.Error(w, fmt.Sprintf("%d pages are open already, or the relay ends; this page does not update itself", maxStreams), http.StatusServiceUnavailable)
		return
	}
	mirror.Signal(p.opened)
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
		case <-seen.newer: // if the page was slow, there were several
			last := p.last.Load()
			if last.ended {
				return
			}
			if topics := last.changed(seen); len(topics) > 0 {
				ok = send("event: changed\ndata: " + strings.Join(topics, " ") + "\n\n")
			}
			seen = last
		case <-beat.C:
			ok = send(": still here\n\n")
		}
	}
}
