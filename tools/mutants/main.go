// Command mutants breaks the code of some packages in small ways, one at a time, and counts how many of
// these mutants the tests that need no socket notice. It shows whether tests still say what they said:
// run it before and after tests are changed.
//
// All mutants are built into one test binary for each package of tests: a function with mutants has a copy for each,
// and calls the one that RELAY_MUTANT names. So a mutant costs one run of the tests, and no build.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
)

// group is packages that are broken, and the tests that could see it, the nearest first.
type group struct {
	packages []string
	judges   []judge
}

// judge is tests of one package. own stands for the package that is broken.
type judge struct{ pkg, run string }

const own = "."

var (
	scenarios  = judge{"./upstreams", "^TestScenarios$"}
	federation = []string{"./federation", "./federation/conflicts", "./federation/filter", "./federation/merge", "./federation/rewrite", "./federation/services"}
	groups     = []group{
		{[]string{"./upstreams/intake"}, []judge{{own, "."}, scenarios}},
		{federation, []judge{{own, "."}, {"./mirror", "."}, scenarios}},
		{[]string{"./mirror"}, []judge{{own, "."}, {"./federation/conflicts", "."}, scenarios}},
		{[]string{"./downstream/subscription"}, []judge{{own, "."}, {"./downstream", "Model"}}},
		{[]string{"./sink/plan"}, []judge{{own, "."}}},
	}
)

func main() {
	n := flag.Int("n", 300, "how many mutants, over all packages")
	seed := flag.Uint64("seed", 1, "which mutants: the same seed draws the same ones from the same code")
	jobs := flag.Int("jobs", 2, "how many run at once")
	dir := flag.String("dir", ".", "directory of the module whose code is broken")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	drawn, err := run(ctx, *dir, groups, *n, *seed, *jobs)
	report(os.Stdout, drawn)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// run draws n mutants of the groups, and has each judged. Those that were not judged when an error came are
// not returned.
func run(ctx context.Context, dir string, groups []group, n int, seed uint64, jobs int) ([]*mutant, error) {
	work, err := os.MkdirTemp("", "mutants.")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	var all []*mutant
	for _, g := range groups {
		for _, pkg := range g.packages {
			found, err := find(dir, pkg)
			if err != nil {
				return nil, err
			}
			for _, m := range found {
				m.judges = g.judges
			}
			all = append(all, found...)
		}
	}
	for _, m := range all {
		m.rank = m.draw(seed)
	}
	slices.SortFunc(all, func(a, b *mutant) int { return cmp.Compare(a.rank, b.rank) })
	b := &build{dir: dir, work: work}
	drawn, err := b.compile(ctx, all, n)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(os.Stderr, "mutants: %d of %d places, seed %d\n", len(drawn), len(all), seed)
	if err := b.unbroken(ctx, drawn); err != nil {
		return nil, err
	}
	err = b.judge(ctx, drawn, jobs)
	return slices.DeleteFunc(drawn, func(m *mutant) bool { return !m.judged }), err
}

// judge runs the tests that could see each mutant, until one of them does.
func (b *build) judge(ctx context.Context, drawn []*mutant, jobs int) error {
	todo := make(chan *mutant)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for range jobs {
		wg.Go(func() {
			for m := range todo {
				err := b.try(ctx, m)
				mu.Lock()
				failed = errors.Join(failed, err)
				mu.Unlock()
			}
		})
	}
	for i, m := range drawn {
		if ctx.Err() != nil {
			break
		}
		if i%25 == 0 {
			fmt.Fprintf(os.Stderr, "mutants: %d of %d\n", i, len(drawn))
		}
		todo <- m
	}
	close(todo)
	wg.Wait()
	return errors.Join(failed, ctx.Err())
}

// report prints the mutants that nobody noticed, and the share of the others by package.
func report(w io.Writer, drawn []*mutant) {
	type count struct{ killed, all int }
	by := map[string]*count{}
	var total count
	slices.SortFunc(drawn, func(a, b *mutant) int {
		return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.line, b.line), cmp.Compare(a.what, b.what))
	})
	for _, m := range drawn {
		c := by[m.pkg]
		if c == nil {
			c = &count{}
			by[m.pkg] = c
		}
		c.all++
		total.all++
		if m.killer != "" {
			c.killed++
			total.killed++
			continue
		}
		fmt.Fprintf(w, "survives %s\n", m)
	}
	pkgs := make([]string, 0, len(by))
	for pkg := range by {
		pkgs = append(pkgs, pkg)
	}
	slices.Sort(pkgs)
	for _, pkg := range pkgs {
		fmt.Fprintf(w, "killed %4d of %4d  %s\n", by[pkg].killed, by[pkg].all, pkg)
	}
	fmt.Fprintf(w, "killed %4d of %4d  (%.1f %%)\n", total.killed, total.all, 100*float64(total.killed)/float64(max(total.all, 1)))
}
