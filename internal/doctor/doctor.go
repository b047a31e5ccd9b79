// Package doctor checks what a relay needs before it starts: names, ports, certificates, tokens,
// directories. Each check is a Finding with what is wrong, why, and what to do.
//
// The checks only read: they connect, listen for a moment, and look at files. They change nothing.
//
// The package must not know the config file, nor the protocols of upstreams.
package doctor

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Level is the outcome of a check.
type Level string

// The outcomes, the best first.
const (
	OK      Level = "ok"
	Warning Level = "warning" // it works, and should be looked at
	Failed  Level = "failed"
)

// Finding is the outcome of one check.
type Finding struct {
	// Check is a word for the check, such as "tls". Upstream is the upstream that it is about, or
	// Clusters the place where clusters are found; both are empty for the relay itself.
	Check    string `json:"check"`
	Upstream string `json:"upstream,omitempty"`
	Clusters string `json:"clusters,omitempty"`
	// Target is the address, file or directory.
	Target string `json:"target,omitempty"`
	Level  Level  `json:"level"`
	// What is the outcome in one sentence. Why is the cause, and Fix what to do, of those that are
	// not OK.
	What string `json:"what"`
	Why  string `json:"why,omitempty"`
	Fix  string `json:"fix,omitempty"`
	// Resources is how many resources an upstream has, where a check has counted them.
	Resources int `json:"resources,omitempty"`
}

// Good returns a Finding of a check that passed.
func Good(check, target, format string, args ...any) Finding {
	return Finding{Check: check, Target: target, Level: OK, What: fmt.Sprintf(format, args...)}
}

// Bad returns a Finding of a check that failed.
func Bad(check, target, what, why, fix string) Finding {
	return Finding{Check: check, Target: target, Level: Failed, What: what, Why: why, Fix: fix}
}

// Doubt returns a Finding that is a warning.
func Doubt(check, target, what, why, fix string) Finding {
	return Finding{Check: check, Target: target, Level: Warning, What: what, Why: why, Fix: fix}
}

// Worst returns the worst level of findings, OK for none.
func Worst(all []Finding) Level {
	worst := OK
	for _, f := range all {
		if f.Level == Failed || f.Level == Warning && worst == OK {
			worst = f.Level
		}
	}
	return worst
}

// Count returns how many findings have a level.
func Count(all []Finding, level Level) (n int) {
	for _, f := range all {
		if f.Level == level {
			n++
		}
	}
	return n
}

// Check is one check, or several that follow each other.
type Check struct {
	// Name, Upstream and Clusters are for its findings.
	Name, Upstream, Clusters string
	Run                      func(ctx context.Context) []Finding
}

// maxAtOnce bounds the checks that run at the same time.
const maxAtOnce = 16

// Run runs checks at the same time, each for at most a time limit, and returns their findings in the
// order of the checks. A check that ignores the limit is left behind, and reported.
func Run(ctx context.Context, limit time.Duration, checks []Check) []Finding {
	found := make([][]Finding, len(checks))
	slots := make(chan struct{}, maxAtOnce)
	var group sync.WaitGroup
	for i, c := range checks {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			bounded, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			found[i] = c.Run(bounded)
			for k := range found[i] {
				found[i][k].Upstream, found[i][k].Clusters = c.Upstream, c.Clusters
			}
		})
	}
	group.Wait()
	return slices.Concat(found...)
}
