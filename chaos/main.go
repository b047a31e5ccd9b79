// Command chaos runs relays between upstreams that misbehave and clients that check every
// response, and fails when the relay breaks a promise. README.md lists the promises.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

// options are what a run is told.
type options struct {
	seed             uint64
	lasts            time.Duration
	out              string
	kills            int
	storms, changes  int
	starts           int
	scenarios, broke string
	prepare          bool
}

func run() error {
	var o options
	flag.Uint64Var(&o.seed, "seed", 0, "`number` that all faults and changes follow from; 0: any")
	flag.DurationVar(&o.lasts, "for", 4*time.Minute, "how `long` the scenarios take together, about, but for those that run only when they are named")
	flag.StringVar(&o.scenarios, "scenario", "", "`names` of the scenarios to run, with commas, or all; empty: those above that run without being named")
	flag.StringVar(&o.broke, "break", "", "build and run this `mutant` of the relay: "+strings.Join(mutants(), ", "))
	flag.IntVar(&o.kills, "kills", 1000, "how `often` the scenario kills does that")
	flag.IntVar(&o.changes, "changes", 1_000_000, "how `many` changes the scenario churn makes")
	flag.IntVar(&o.storms, "storms", 1000, "how `many` storms of clients it has")
	flag.IntVar(&o.starts, "starts", 20, "how `often` the scenario start starts the relay")
	flag.StringVar(&o.out, "out", "", "`directory` for configs, logs and states, which stay there; empty: a temporary one, which goes unless something is wrong")
	flag.BoolVar(&o.prepare, "prepare", false, "fill Go's build cache for the scenario sites, which takes some minutes once, and end")
	flag.Usage = usage
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if o.prepare {
		return prepare(ctx)
	}
	return o.run(ctx, os.Stdout)
}

func usage() {
	w := flag.CommandLine.Output()
	fmt.Fprintf(w, "usage: chaos [flags]\n\nscenarios:\n")
	for _, sc := range append([]scenario{sitesScenario()}, scenarios()...) {
		fmt.Fprintf(w, "  %-12s %s\n", sc.name, sc.about)
	}
	fmt.Fprintf(w, "\nscenarios that run only when they are named:\n")
	for _, sc := range measured() {
		fmt.Fprintf(w, "  %-12s %s\n", sc.name, sc.about)
	}
	fmt.Fprintf(w, "\nflags:\n")
	flag.PrintDefaults()
}

// prepare has Go build a relay with another clock, and with it all packages anew.
func prepare(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "chaos-")
	if err == nil {
		_, err = buildRelay(ctx, "", dir, true)
	}
	return errors.Join(err, os.RemoveAll(dir))
}

// run runs the chosen scenarios, one after the other, and reports on them.
func (o options) run(ctx context.Context, out io.Writer) error {
	if o.seed == 0 {
		o.seed = rand.Uint64N(1 << 32)
	}
	fmt.Fprintf(out, "seed %d\n", o.seed)
	chosen, err := choose(o.scenarios)
	if err != nil {
		return err
	}
	dir, remove, err := outDir(o.out)
	if err != nil {
		return err
	}
	binary, err := buildRelay(ctx, o.broke, dir, false)
	if err != nil {
		return err
	}
	j := newJournal(out)
	left := o.lasts // for the ordinary scenarios that are still to come
	var results []result
	for i, sc := range chosen {
		// The scenarios that are left share the time that those before have left.
		began, share := time.Now(), left/time.Duration(max(1, ordinary(chosen[i:])))
		res, err := o.play(ctx, sc, share, out, binary, dir, j)
		if ordinary(chosen[i:i+1]) > 0 {
			left -= time.Since(began)
		}
		results = append(results, res)
		if err != nil {
			fmt.Fprintln(out)
			report(out, results, j)
			if ctx.Err() != nil && remove { // nobody wants to look at it
				return errors.Join(fmt.Errorf("scenario %s: %w", sc.name, context.Cause(ctx)), os.RemoveAll(dir))
			}
			return o.explain(out, sc, dir, j, err)
		}
	}
	fmt.Fprintln(out)
	report(out, results, j)
	fmt.Fprintf(out, "\nno invariant was violated; seed %d\n", o.seed)
	if remove {
		return os.RemoveAll(dir)
	}
	return nil
}

// measured are the scenarios that are too long, or too large, for every day.
func measured() []scenario {
	return []scenario{killScenario(), churnScenario(), startScenario(), hugeScenario(), stormScenario()}
}

// ordinary returns how many scenarios share the time that a run lasts.
func ordinary(chosen []scenario) (n int) {
	for _, sc := range chosen {
		if !slices.ContainsFunc(measured(), func(m scenario) bool { return m.name == sc.name }) {
			n++
		}
	}
	return n
}

// choose returns the scenarios with these names, those that share a time when there is no
// name, or all.
func choose(names string) (out []scenario, err error) {
	shared := append([]scenario{sitesScenario()}, scenarios()...)
	if names == "" {
		return shared, nil
	}
	all := append(shared, measured()...)
	if names == "all" {
		return all, nil
	}
	for _, name := range strings.Split(names, ",") {
		i := slices.IndexFunc(all, func(sc scenario) bool { return sc.name == name })
		if i < 0 {
			return nil, fmt.Errorf("-scenario: there is no %q", name)
		}
		out = append(out, all[i])
	}
	return out, nil
}

// play runs one scenario. lasts is for those that have no measure of their own.
func (o options) play(ctx context.Context, sc scenario, lasts time.Duration, out io.Writer, binary, dir string, j *journal) (result, error) {
	switch sc.name {
	case killScenario().name:
		return o.kill(ctx, out, binary, dir, j)
	case churnScenario().name:
		return o.churn(ctx, out, binary, dir, j)
	case startScenario().name:
		return o.begin(ctx, out, binary, dir, j)
	}
	if sc.name == sitesScenario().name {
		binary, err := buildRelay(ctx, o.broke, dir, true)
		if err != nil {
			return result{scenario: sc.name}, err
		}
		return runSites(ctx, sc, o.seed, lasts, binary, dir, j)
	}
	if sc.name == hugeScenario().name {
		lasts = 0 // a round is enough
	}
	return sc.run(ctx, o.seed, lasts, binary, dir, j)
}

// outDir returns the directory for what a run leaves behind, and whether that is to go.
func outDir(path string) (dir string, remove bool, err error) {
	if path == "" {
		dir, err = os.MkdirTemp("", "chaos-")
		return dir, true, err
	}
	if dir, err = filepath.Abs(path); err != nil {
		return "", false, err
	}
	return dir, false, os.MkdirAll(dir, 0o700)
}

// explain writes what is known of a violation, and returns it.
func (o options) explain(out io.Writer, sc scenario, dir string, j *journal, err error) error {
	var v *violation
	if !errors.As(err, &v) {
		return fmt.Errorf("scenario %s: %w; configs and logs are in %s", sc.name, err, dir)
	}
	j.replay(out, v.key)
	fmt.Fprintf(out, "\n%v\n\n", v)
	fmt.Fprintf(out, "configs, logs and states: %s\nto replay: chaos --seed %d --scenario %s\n", dir, o.seed, sc.name)
	return fmt.Errorf("scenario %s: %w", sc.name, v)
}

// report writes the tables at the end.
func report(out io.Writer, results []result, j *journal) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "scenario\trounds\tchanges\tresponses\tkills\tstorm clients\tlongest convergence\tmax goroutines\tmax fds\tmax RSS")
	for _, r := range results {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%v\t%d\t%d\t%s\n", r.scenario, r.rounds, r.changes, r.responses, r.kills, r.storms,
			r.longest.Round(time.Millisecond), r.peak.goroutines, r.peak.fds, mebibytes(r.peak.rss))
	}
	w.Flush() // nothing can be done about it
	for _, r := range results {
		if r.pods > 0 {
			fmt.Fprintf(out, "%s: %d changes of pods; a client had something else than an API server in contact for %v at most\n", r.scenario, r.pods, r.unreached.Round(time.Millisecond))
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	fmt.Fprintln(out)
	fmt.Fprintln(w, "fault\ttimes")
	for _, kind := range sortedKeys(j.counts) {
		fmt.Fprintf(w, "%s\t%d\n", kind, j.counts[kind])
	}
	w.Flush() // as above
}

func sortedKeys(m map[string]int) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
