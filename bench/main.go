// Command bench compares programs that relay Istio configuration: each is started as a
// process, on the same machine and in the same run, behind fake control planes, and drives
// real gRPC clients. It checks that what the clients hold in the end is right, and fails
// when that of the relay is not.
package main

import (
	"errors"
	"flag"
	"fmt"
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
	contenderNames := flag.String("contenders", "floor,relay,relay-rules,linear,istiod", "`names` of the contenders, with commas")
	runs := flag.Int("runs", 3, "how often each scenario is run, but once only with slow contenders; the tables show medians")
	changes := flag.Int("changes", 0, "how many single changes are timed; 0: as many as the scenario has")
	out := flag.String("out", "out", "`directory` for results.json, results.md and the plots")
	render := flag.Bool("render", false, "only make the tables and plots again, from results.json")
	profiles := flag.String("profiles", "", "`directory` for CPU and heap profiles of the relay; taking them costs it a little")
	var bin binaries
	flag.StringVar(&bin.relay, "relay", "../bin/relay", "`path` of the relay")
	flag.StringVar(&bin.floor, "floor", "bin/floor", "`path` of the floor")
	flag.StringVar(&bin.linear, "linear", "bin/linear", "`path` of the minimal relay")
	flag.StringVar(&bin.istiod, "istiod", "../e2e/bin/pilot-discovery", "`path` of istiod")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "usage: bench [flags]\n\nscenarios:\n")
		for _, s := range scenarios() {
			fmt.Fprintf(flag.CommandLine.Output(), "  %s\n", s.Name)
		}
		fmt.Fprintf(flag.CommandLine.Output(), "\ncontenders:\n")
		for _, c := range contenders(bin) {
			fmt.Fprintf(flag.CommandLine.Output(), "  %-11s %s\n", c.name, c.what)
		}
		fmt.Fprintf(flag.CommandLine.Output(), "\nflags:\n")
		flag.PrintDefaults()
	}
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
	pattern, err := regexp.Compile(*scenarioPattern)
	if err != nil {
		return fmt.Errorf("-scenarios: %w", err)
	}
	for _, path := range []*string{&bin.relay, &bin.floor, &bin.linear, &bin.istiod} {
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
	rep := newReport(os.Args, bin)
	if err := rep.save(*out); err != nil { // now rather than after an hour
		return err
	}
	var failed []error
	for n := range *runs {
		for _, s := range scenarios() {
			if !pattern.MatchString(s.Name) {
				continue
			}
			if *changes > 0 {
				s.Changes = *changes
			}
			for _, c := range chosen {
				if !s.isFor(c) || c.slow && n > 0 {
					continue
				}
				began := time.Now()
				r := measure(s, c, n+1, *profiles)
				rep.Results = append(rep.Results, r)
				if err := rep.save(*out); err != nil {
					fmt.Fprintln(os.Stderr, "bench:", err)
				}
				fmt.Fprintf(os.Stderr, "run %d of %d  %s  (%v)\n", n+1, *runs, r.line(), time.Since(began).Round(time.Second))
				if r.Error != "" && c.product {
					failed = append(failed, fmt.Errorf("%s, %s, run %d: %s", s.Name, c.name, n+1, r.Error))
				}
			}
		}
	}
	if len(rep.Results) == 0 {
		return fmt.Errorf("no scenario matches %q for %s", *scenarioPattern, *contenderNames)
	}
	return errors.Join(append(failed, rep.write(*out))...)
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
