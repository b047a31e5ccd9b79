package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

const (
	// traced is how many clients of a scenario of rates are timed at most.
	traced = 100
	// cooldown is the pause before each rate: longer than anybody's debounce.
	cooldown = 2 * time.Second
)

// rateResult is what a steady rate of changes costs, and how late they come.
type rateResult struct {
	GapMS    float64 `json:"gapMs"` // from one change to the next
	Changes  int     `json:"changes"`
	Together int     `json:"together,omitempty"` // changes at once, if more than one
	Timed    int     `json:"timed"`              // changes, each to each client that is timed
	MedianMS float64 `json:"medianMs"`           // from each change to each client
	P99MS    float64 `json:"p99Ms"`
	MaxMS    float64 `json:"maxMs"`
	// Cores is how much of one CPU the contender used, and Messages what each client was sent in
	// a second.
	Cores    float64 `json:"cores"`
	OwnCores float64 `json:"ownCores,omitempty"` // of the bench: clients and control planes
	Messages float64 `json:"messages"`
	RSSMiB   float64 `json:"rssMib,omitempty"` // after it
}

var rateFigures = []func(*rateResult) *float64{
	func(r *rateResult) *float64 { return &r.MedianMS },
	func(r *rateResult) *float64 { return &r.P99MS },
	func(r *rateResult) *float64 { return &r.MaxMS },
	func(r *rateResult) *float64 { return &r.Cores },
	func(r *rateResult) *float64 { return &r.OwnCores },
	func(r *rateResult) *float64 { return &r.Messages },
	func(r *rateResult) *float64 { return &r.RSSMiB },
}

// traceClients has clients keep how long each change took to them.
func (b *bench) traceClients(clients []*client) {
	for _, c := range clients {
		c.mu.Lock()
		c.trace = func(index, seq int, now time.Time) { c.took = append(c.took, now.Sub(b.world.issuedAt(index, seq))) }
		c.mu.Unlock()
	}
}

// collect returns what clients have kept since the last time, sorted.
func collect(clients []*client) (all []time.Duration) {
	for _, c := range clients {
		c.mu.Lock()
		all, c.took = append(all, c.took...), nil
		c.mu.Unlock()
	}
	slices.Sort(all)
	return all
}

// rates makes changes at one steady rate after the other.
func (b *bench) rates() error {
	clients := b.clients[:min(traced, len(b.clients))]
	b.traceClients(clients)
	for _, gap := range b.scenario.Gaps {
		time.Sleep(cooldown)
		b.digest()
		r, err := b.rate(clients, gap)
		if err != nil {
			return fmt.Errorf("one change every %v: %w", gap, err)
		}
		b.result.Rates = append(b.result.Rates, r)
	}
	if !b.scenario.Settle {
		rss, _ := b.process.memory()
		b.result.RSSMiB = mib(rss)
	}
	return nil
}

func (b *bench) rate(clients []*client, gap time.Duration) (r rateResult, err error) {
	n, together := int(b.scenario.Lasting/gap), max(1, b.scenario.Together)
	defer b.profile(fmt.Sprintf("every-%v", gap), fmt.Sprintf("profile?seconds=%d", max(1, int(b.scenario.Lasting/time.Second))))()
	cpu, own, began := b.process.cpu(), ownCPU(), time.Now()
	_, messages := b.received()
	g := b.world.aim(len(b.clients), b.world.changes.Load()+int64(n*together), time.Now())
	b.churn(context.Background(), n, gap)
	if _, err := b.wait(g); err != nil {
		return r, err
	}
	lasted := time.Since(began)
	_, after := b.received()
	used, ownUsed := b.process.cpu()-cpu, ownCPU()-own
	rss, _ := b.process.memory()
	took := collect(clients)
	return rateResult{
		Together: b.scenario.Together, GapMS: ms(gap), Changes: n * together, Timed: len(took), MedianMS: ms(quantile(took, 0.5)), P99MS: ms(quantile(took, 0.99)), MaxMS: ms(quantile(took, 1)),
		Cores: float64(used) / float64(lasted), OwnCores: float64(ownUsed) / float64(lasted), Messages: (after - messages) / lasted.Seconds(), RSSMiB: mib(rss),
	}, nil
}
