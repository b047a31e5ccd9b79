package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// killScenario kills a relay again and again while its upstreams change. After each restart
// the relay can reach none of them, and must serve a state that they had.
func killScenario() scenario {
	return scenario{
		name: "kills", about: "SIGKILLs during continuous changes, after which a relay is to serve what its upstreams really had",
		sources: []string{"east", "west"}, keys: 400, apart: true, relays: 1, state: true, rate: 200,
	}
}

const (
	// lifeShort and lifeLong bound the life of a relay before it is killed: every second relay
	// dies before its first flush.
	lifeShort, lifeLong = 500 * time.Millisecond, 2500 * time.Millisecond
	// restored is how long a relay may take to serve its state after a start.
	restored = 10 * time.Second
)

// kills runs the kill scenario.
func (o options) kill(ctx context.Context, out io.Writer, binary, dir string, j *journal) (res result, err error) {
	sc := killScenario()
	res.scenario = sc.name
	st, err := newStage(ctx, sc, binary, filepath.Join(dir, sc.name), j)
	if err != nil {
		return res, err
	}
	defer func() { st.close(); st.fill(&res) }()
	// Clients that live on would see what was lost with each kill; here each has a new one.
	st.clients = nil
	plan := newSchedule(o.seed, sc, len(sc.sources), st.world.holders)
	j.say("scenario %s: %d SIGKILLs", sc.name, o.kills)
	if err := st.start(plan.first()); err != nil {
		return res, err
	}
	if err := st.synced(); err != nil {
		return res, err
	}
	if err := sleep(st.ctx, flushed); err != nil {
		return res, err
	}
	st.running.Go(func() {
		if err := st.changeOn(plan); err != nil && st.ctx.Err() == nil {
			st.stop(err)
		}
	})
	r := st.relays[0]
	lives := rand.New(rand.NewPCG(o.seed, 1))
	var took []time.Duration
	var oldest time.Duration
	for n := range o.kills {
		life := lifeLong
		if n%2 == 0 {
			life = lifeShort
		}
		if err := sleep(st.ctx, time.Duration(lives.Int64N(int64(life)))); err != nil {
			return res, err
		}
		killed := time.Now()
		if err := r.signal(syscall.SIGKILL, true); err != nil {
			return res, err
		}
		st.isolate()
		began := time.Now()
		if err := r.start(); err != nil {
			return res, err
		}
		v, err := st.firstView(n)
		if err != nil {
			return res, cause(st.ctx, err)
		}
		took = append(took, time.Since(began))
		st.kills++
		j.count("kill")
		behind, err := st.wasReal(v, killed)
		if err != nil {
			return res, err
		}
		oldest = max(oldest, behind)
		for _, u := range st.upstreams {
			u.acked.forget(killed.Add(-flushed))
		}
		if aside, err := st.setAside(0); err != nil || len(aside) > 0 {
			return res, errors.Join(err, &violation{alive, r.name, -1, fmt.Sprintf("after the SIGKILL number %d it has set aside its state: %v", n+1, aside)})
		}
		if err := st.reconnect(); err != nil {
			return res, err
		}
		if (n+1)%100 == 0 {
			j.say("%d SIGKILLs; what was served after a restart was %v behind at most", n+1, oldest.Round(time.Millisecond))
		}
	}
	slices.Sort(took)
	fmt.Fprintf(out, "\n%d SIGKILLs: the state opened every time and was one that the upstreams had, %v behind the kill at most\n", o.kills, oldest.Round(time.Millisecond))
	if len(took) > 0 {
		fmt.Fprintf(out, "from exec to the first full response: median %v, longest %v\n", took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
	}
	return res, nil
}

// synced waits until the relays have synced.
func (st *stage) synced() error {
	deadline := time.Now().Add(patience)
	for {
		var err error
		for _, r := range st.relays {
			if _, err = r.get(st.ctx, "/ready"); err != nil {
				break
			}
		}
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("a relay is not ready after %v: %w", patience, err)
		}
		if err := sleep(st.ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// isolate cuts the links to all upstreams, and reconnect mends them.
func (st *stage) isolate() {
	for _, l := range st.links[:len(st.upstreams)] {
		l.cut()
	}
}

func (st *stage) reconnect() error {
	var errs []error
	for _, l := range st.links[:len(st.upstreams)] {
		errs = append(errs, l.heal())
	}
	return errors.Join(errs...)
}

// changeOn changes the world at the rate of the scenario until the stage ends.
func (st *stage) changeOn(plan *schedule) error {
	ticker := time.NewTicker(time.Second / time.Duration(st.scenario.rate))
	defer ticker.Stop()
	for {
		select {
		case <-st.ctx.Done():
			return nil
		case <-ticker.C:
		}
		var c change
		if plan.decide(&c, nil) {
			if err := st.change(c); err != nil {
				return err
			}
		}
	}
}

// firstView returns what a new client is given first.
func (st *stage) firstView(n int) (*view, error) {
	ctx, cancel := context.WithTimeout(st.ctx, restored)
	defer cancel()
	for {
		c := newClient(fmt.Sprintf("after-kill-%d", n+1), st.relays[0].address, n%2 == 1, n%3, st.world, st.reader, &st.responses, func(v *violation) { st.stop(v) })
		err := c.stream(ctx, func(answered int) bool { return answered == len(kinds) })
		if err == nil {
			return c.view, nil
		}
		if ctx.Err() != nil {
			return nil, &violation{lost, c.name, -1, fmt.Sprintf("the relay does not serve what it has kept within %v of its start: %v", restored, err)}
		}
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			continue // the time is up
		}
	}
}

// span is a part of a source's history: from a commit up to, and without, another.
type span struct{ from, to uint64 }

const forever = 1<<64 - 1

// wasReal checks that of each source and kind a view is what the source had at one moment,
// which is not before what the relay had taken some time before it was killed. It returns how
// long before the kill that was, at most.
func (st *stage) wasReal(v *view, killed time.Time) (behind time.Duration, err error) {
	w := st.world
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, u := range st.upstreams {
		s := u.source
		for kind, keys := range s.byKind {
			spans := make([][]span, len(keys))
			for i, key := range keys {
				c, shown := v.shown[key]
				if spans[i] = s.spans(key, c.seq, shown, u.acked); len(spans[i]) == 0 {
					return 0, &violation{wrong, v.who, key, fmt.Sprintf("shows #%d of %s, which never was so", c.seq, s.name)}
				}
			}
			until, most := together(spans)
			if most < len(keys) {
				return 0, &violation{wrong, v.who, keys[0], fmt.Sprintf("shows a state of the %d configs of kind %s that %s never had: at most %d of them were so at the same time",
					len(keys), kinds[kind].name, s.name, most)}
			}
			if taken := u.acked.before(kind, killed.Add(-flushed)); until <= taken {
				return 0, &violation{lost, v.who, keys[0], fmt.Sprintf("shows the %s configs of %s as they were before commit %d, and the relay had taken commit %d more than %v before it was killed",
					kinds[kind].name, s.name, until, taken, flushed)}
			}
			behind = max(behind, u.acked.behind(kind, until, killed))
		}
	}
	return behind, nil
}

// spans returns when a source had a content of a key, or had none. What it has deleted may
// be served on until the relay has taken all that the source has. The caller holds the
// world's lock.
func (s *source) spans(key, seq int, shown bool, acked *ledger) (out []span) {
	log := s.items[key].log
	end := func(i int) uint64 {
		if i+1 < len(log) {
			return log[i+1].number
		}
		return forever
	}
	if !shown && (len(log) == 0 || log[0].number > 0) {
		out = append(out, span{0, end(-1)})
	}
	for i, c := range log {
		switch {
		case shown && c.present && c.seq == seq:
			to := end(i)
			if i+1 < len(log) && !log[i+1].present {
				if now, ok := acked.since(key%len(kinds), to); ok {
					to = max(to, now)
				} else {
					to = forever
				}
			}
			out = append(out, span{c.number, to})
		case !shown && !c.present:
			out = append(out, span{c.number, end(i)})
		}
	}
	return out
}

// together returns up to when, at the latest, as many of the lists as possible have a span
// at the same time, and how many those are.
func together(lists [][]span) (until uint64, most int) {
	type edge struct {
		at     uint64
		change int
	}
	var edges []edge
	for _, list := range lists {
		for _, s := range list {
			edges = append(edges, edge{s.from, 1}, edge{s.to, -1})
		}
	}
	// A span ends before the next begins.
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.change, b.change)) })
	n := 0
	for i, e := range edges {
		n += e.change
		last := i+1 == len(edges) || edges[i+1].at > e.at
		if last && n >= most {
			most = n
			until = forever
			if i+1 < len(edges) {
				until = edges[i+1].at
			}
		}
	}
	return until, most
}
