package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"text/tabwriter"
	"time"
)

// churnScenario changes the world very often, with storms of clients all the while.
func churnScenario() scenario {
	return scenario{
		name: "churn", about: "a million changes and a thousand storms of clients, after which a relay is to use what it used before",
		sources: []string{"east", "west"}, keys: 1000, relays: 1, state: true, storm: 25,
		// Full after a quarter of it, so that what grows after that is no file.
		past: 4 << 20,
	}
}

const (
	// samples is how often a run looks at what the relay uses.
	samples = 40
	// batch is how many changes are made at once; in between the upstreams can speak.
	batch      = 200
	batchPause = 10 * time.Millisecond
)

// churn runs the churn scenario.
func (o options) churn(ctx context.Context, out io.Writer, binary, dir string, j *journal) (res result, err error) {
	sc := churnScenario()
	res.scenario = sc.name
	st, err := newStage(ctx, sc, binary, filepath.Join(dir, sc.name), j)
	if err != nil {
		return res, err
	}
	defer func() { st.close(); st.fill(&res) }()
	plan := newSchedule(o.seed, sc, len(sc.sources), st.world.holders)
	j.say("scenario %s: %d changes and %d storms of %d clients", sc.name, o.changes, o.storms, sc.storm)
	if err := st.start(plan.first()); err != nil {
		return res, err
	}
	var used []sample
	first := st.world.changes
	stormed := 0
	for part := 1; part <= samples; part++ {
		for made := st.world.made() - first; made < o.changes*part/samples; made = st.world.made() - first {
			for range batch {
				var c change
				if plan.decide(&c, nil) {
					if err := st.change(c); err != nil {
						return res, err
					}
				}
			}
			// Storms come in step with the changes.
			for made := st.world.made() - first; stormed < o.storms && stormed*o.changes < made*o.storms; stormed++ {
				st.passing.Wait()
				st.storm(0, sc.storm)
				j.count("storm")
			}
			if err := sleep(st.ctx, batchPause); err != nil {
				return res, err
			}
		}
		if err := st.settle("the last change", sc.within(convergence)); err != nil {
			return res, err
		}
		s, err := st.relays[0].sample(st.ctx, true)
		if err != nil {
			return res, cause(st.ctx, err)
		}
		used = append(used, s)
		if part%4 == 0 {
			j.say("%d changes, %d storms: %d goroutines, %d fds, %s of live heap, %s RSS", st.world.made()-first, stormed, s.goroutines, s.fds, mebibytes(s.heap), mebibytes(s.rss))
		}
		res.rounds++
	}
	before, after := mean(used[:samples/4]), mean(used[samples-samples/4:])
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\n\tgoroutines\tfds\tlive heap\tRSS\n")
	for _, row := range []struct {
		what string
		sample
	}{{"first quarter", before}, {"last quarter", after}} {
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\n", row.what, row.goroutines, row.fds, mebibytes(row.heap), mebibytes(row.rss))
	}
	w.Flush() // nothing can be done about it
	var what string
	switch {
	case after.heap > before.heap+moreChurned:
		what = fmt.Sprintf("it has %s of live heap, and had %s", mebibytes(after.heap), mebibytes(before.heap))
	case after.rss > before.rss+2*moreChurned:
		what = fmt.Sprintf("its RSS is %s, and was %s", mebibytes(after.rss), mebibytes(before.rss))
	default:
		what = more(before, after)
	}
	if what != "" {
		return res, &violation{leaked, st.relays[0].name, -1, "on average over the last quarter " + what + " over the first"}
	}
	return res, nil
}

// moreChurned is how much more live heap, in bytes, a relay may have in the last quarter of
// the churn than in the first; of RSS twice that.
const moreChurned = 8 << 20

// made returns how many changes the world has seen.
func (w *world) made() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changes
}

func mean(list []sample) (m sample) {
	for _, s := range list {
		m.goroutines += s.goroutines
		m.fds += s.fds
		m.heap += s.heap
		m.rss += s.rss
	}
	n := max(1, len(list))
	return sample{goroutines: m.goroutines / n, fds: m.fds / n, heap: m.heap / int64(n), rss: m.rss / int64(n)}
}
