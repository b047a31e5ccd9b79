// Command bench compares programs that relay Istio configuration: each is started as a
// process, on the same machine and in the same run, behind fake control planes, and drives
// real gRPC clients. It checks that what the clients hold in the end is right, and fails
// when that of the relay is not.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	scenarioPattern := flag.String("scenarios", ".", "run the scenarios that match this regular `expression`")
	contenderNames := flag.String("contenders", "floor,relay,relay-rules,relay-omit,linear,istiod,watch,apply", "`names` of the contenders, with commas")
	runs := flag.Int("runs", 1, "how often each scenario is run, but once only with slow contenders; the tables show medians")
	changes := flag.Int("changes", 0, "how many single changes are timed; 0: as many as the scenario has")
	out := flag.String("out", "out", "`directory` for results.json and results.md")
	render := flag.Bool("render", false, "only make the tables again, from results.json")
	note := flag.String("note", "", "`text` that a reader of the results must know, for the documents")
	docs := flag.String("docs", "", "only write results.json and micro.txt of -out into the documents in this `directory`")
	profiles := flag.String("profiles", "", "`directory` for CPU and heap profiles of the relay; taking them costs it a little")
	var bin binaries
	flag.StringVar(&bin.relay, "relay", "../bin/relay", "`path` of the relay")
	flag.StringVar(&bin.floor, "floor", "bin/floor", "`path` of the floor")
	flag.StringVar(&bin.linear, "linear", "bin/linear", "`path` of the minimal relay")
	flag.StringVar(&bin.istiod, "istiod", "../e2e/bin/pilot-discovery", "`path` of istiod")
	flag.StringVar(&bin.watch, "watch", "bin/watch", "`path` of the reader of an API server")
	flag.StringVar(&bin.apply, "apply", "bin/apply", "`path` of the plain writers")
	flag.StringVar(&bin.apiserver, "apiserver", "../e2e/bin/kube-apiserver", "`path` of the API server")
	flag.StringVar(&bin.etcd, "etcd", "../e2e/bin/etcd", "`path` of etcd")
	flag.Usage = func() { usage(flag.CommandLine.Output()) }
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if *render {
		rep, err := readReport(filepath.Join(*out, "results.json"))
		if err != nil {
			return err
		}
		return rep.write(*out)
	}
	if *docs != "" {
		return renderDocuments(*out, *docs)
	}
	pattern, err := regexp.Compile(*scenarioPattern)
	if err != nil {
		return fmt.Errorf("-scenarios: %w", err)
	}
	for _, path := range []*string{&bin.relay, &bin.floor, &bin.linear, &bin.istiod, &bin.watch, &bin.apply, &bin.apiserver, &bin.etcd} {
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	chosen, err := choose(contenders(bin), strings.Split(*contenderNames, ","))
	if err != nil {
		return err
	}
	for _, c := range chosen {
		if _, err := os.Stat(c.binary); err != nil {
			return fmt.Errorf("contender %s: %w; `make bench` builds it", c.name, err)
		}
	}
	began, rep := time.Now(), newReport(os.Args, bin)
	rep.Note = *note
	if err := rep.save(*out); err != nil { // now rather than after an hour
		return err
	}
	steps := plan(pattern, chosen, *runs, *changes)
	if len(steps) == 0 {
		return fmt.Errorf("no scenario matches %q for %s", *scenarioPattern, *contenderNames)
	}
	fleet := &clusters{binaries: bin}
	defer fleet.close()
	var failed []error
	for i, step := range steps {
		fmt.Fprintf(os.Stderr, "%d of %d, %v of about %v: %s, %s, run %d\n", i+1, len(steps),
			time.Since(began).Round(time.Second), total(steps).Round(time.Minute), step.scenario.Name, step.contender.name, step.run)
		r := measure(step.scenario, step.contender, step.run, *profiles, fleet)
		rep.Results = append(rep.Results, r)
		if err := rep.save(*out); err != nil { // a later one may take all down
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
		fmt.Fprintf(os.Stderr, "  %s (%.0f s)\n", r.line(), r.Seconds)
		if r.Error != "" && step.contender.product {
			failed = append(failed, fmt.Errorf("%s, %s, run %d: %s", r.Scenario, r.Contender, r.Run, r.Error))
		}
	}
	return errors.Join(append(failed, rep.write(*out))...)
}

// step is one run of one contender in one scenario.
type step struct {
	scenario  scenario
	contender contender
	run       int
}

// plan returns what is run, in order. changes, when not zero, replaces how many single changes the
// scenarios that have any time.
func plan(pattern *regexp.Regexp, chosen []contender, runs, changes int) (steps []step) {
	for n := range runs {
		for _, s := range scenarios() {
			if !pattern.MatchString(s.Name) {
				continue
			}
			if changes > 0 && s.Changes > 0 {
				s.Changes = changes
			}
			for _, c := range chosen {
				if s.isFor(c) && (n == 0 || c.slow == 0) {
					steps = append(steps, step{s, c, n + 1})
				}
			}
		}
	}
	return steps
}

func total(steps []step) (took time.Duration) {
	for _, s := range steps {
		took += s.scenario.estimate(s.contender)
	}
	return took
}

func usage(w io.Writer) {
	all := contenders(binaries{})
	fmt.Fprintf(w, "usage: bench [flags]\n\nscenarios, and about how long one run of all their contenders takes:\n")
	for _, s := range scenarios() {
		steps := plan(regexp.MustCompile("^"+s.Name+"$"), all, 1, 0)
		fmt.Fprintf(w, "  %-26s %v\n", s.Name, total(steps).Round(time.Second))
	}
	fmt.Fprintf(w, "  %-26s %v\n\ncontenders:\n", "all", total(plan(regexp.MustCompile("."), all, 1, 0)).Round(time.Second))
	for _, c := range all {
		fmt.Fprintf(w, "  %-11s %s\n", c.name, c.what)
	}
	fmt.Fprintf(w, "\nleft out:\n")
	for _, row := range leftOutTable().rows {
		fmt.Fprintf(w, "  %s: %s (%s)\n", row[0], row[1], row[2])
	}
	fmt.Fprintf(w, "\nflags:\n")
	flag.PrintDefaults()
}

func choose(all []contender, names []string) ([]contender, error) {
	var out []contender
	for _, name := range names {
		i := slices.IndexFunc(all, func(c contender) bool { return c.name == name })
		if i < 0 {
			return nil, fmt.Errorf("-contenders: there is no %q", name)
		}
		out = append(out, all[i])
	}
	return out, nil
}
