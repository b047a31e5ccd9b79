package adsclient

import (
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// AddressStatus is the state of one address of a Client.
type AddressStatus struct {
	Address string `json:"address"`
	// Active: the stream to this address is in use.
	Active bool `json:"active"`
	// LastError is why the last stream or probe ended, empty when the address works.
	LastError string `json:"lastError,omitempty"`
	// LastAttempt is when the last stream or probe began.
	LastAttempt time.Time `json:"lastAttempt,omitzero"`
	// HealthySince is when a stream had an answer for every type, or a probe its answer. Zero: the
	// address is not known to work.
	HealthySince time.Time `json:"healthySince,omitzero"`
}

// Addresses returns the state of each address, in the order of Config.
func (c *Client) Addresses() []AddressStatus {
	h := c.health
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.addresses)
}

// Switches returns how often the stream moved to another address.
func (c *Client) Switches() uint64 {
	c.health.mu.Lock()
	defer c.health.mu.Unlock()
	return c.health.switches
}

// addressHealth keeps the state of the addresses, by number.
type addressHealth struct {
	mu        sync.Mutex
	addresses []AddressStatus
	switches  uint64
	// answered is the address of the last response, -1 before the first. lost is why its stream
	// ended.
	answered int
	lost     error
}

func newAddressHealth(addresses []string) *addressHealth {
	h := &addressHealth{answered: -1, addresses: make([]AddressStatus, len(addresses))}
	for i, a := range addresses {
		h.addresses[i].Address = a
	}
	return h
}

// tried notes the start of a stream or a probe.
func (h *addressHealth) tried(i int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.addresses[i].LastAttempt = time.Now()
}

// connected notes the first response of a stream.
func (h *addressHealth) connected(i int, log *slog.Logger) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.addresses[i].Active = true
	if h.answered >= 0 && h.answered != i {
		h.switches++
		log.Info("moved to another address", "from", h.addresses[h.answered].Address, "to", h.addresses[i].Address, "reason", h.lost)
	}
	h.answered, h.lost = i, nil
}

// works notes that an address works: its stream has an answer for every type, or its probe has one.
func (h *addressHealth) works(i int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a := &h.addresses[i]
	a.LastError = ""
	if a.HealthySince.IsZero() {
		a.HealthySince = time.Now()
	}
}

// streamEnded notes the end of a stream.
func (h *addressHealth) streamEnded(i int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if i == h.answered && h.lost == nil {
		h.lost = err
	}
	h.addresses[i].Active = false
	if errors.As(err, new(*movedError)) {
		err = nil
	}
	h.addresses[i].fail(err)
}

// probeEnded notes the end of a probe. err is nil if the probe was cancelled.
func (h *addressHealth) probeEnded(i int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.addresses[i].Active {
		h.addresses[i].fail(err)
	}
}

func (a *AddressStatus) fail(err error) {
	a.HealthySince = time.Time{}
	if err != nil {
		a.LastError = err.Error()
	}
}

// route is the order in which addresses are tried, by number; 0 is the preferred one. A round tries
// each once.
type route struct {
	addresses int
	rest      []int // of this round
}

// next returns the address to try. After a round it begins another.
func (r *route) next() int {
	if r.over() {
		r.begin()
	}
	i := r.rest[0]
	r.rest = r.rest[1:]
	return i
}

// over reports whether the round is over.
func (r *route) over() bool { return len(r.rest) == 0 }

// begin begins a round with these addresses. The others follow, preferred ones first.
func (r *route) begin(first ...int) {
	for i := range r.addresses {
		if !slices.Contains(first, i) {
			first = append(first, i)
		}
	}
	r.rest = first
}
