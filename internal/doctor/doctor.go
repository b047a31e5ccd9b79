// Package doctor checks what a relay needs before it starts: names, ports, certificates, tokens and
// directories. Each check returns Findings: what is wrong, why, and what to do.
//
// The checks change nothing: they connect, listen for a moment, and read files.
//
// The package must not know the config file or the protocols of upstreams.
package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// Level is the outcome of a check.
type Level string

// The outcomes, the best first.
const (
	OK      Level = "ok"
	Warning Level = "warning" // it works now, but somebody should look at it
	Failed  Level = "failed"
)

// Finding is the outcome of one check.
type Finding struct {
	// Check is a word for the check, such as "tls". Upstream names the upstream that was checked, and
	// Clusters the place where clusters are found. Both are empty for the relay itself.
	Check    string `json:"check"`
	Upstream string `json:"upstream,omitempty"`
	Clusters string `json:"clusters,omitempty"`
	// Target is the address, file or directory.
	Target string `json:"target,omitempty"`
	Level  Level  `json:"level"`
	// What is the outcome in one sentence. Why is the cause and Fix the remedy; both are empty when
	// Level is OK.
	What string `json:"what"`
	Why  string `json:"why,omitempty"`
	Fix  string `json:"fix,omitempty"`
	// Resources is the number of resources of an upstream, if the check counted them.
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

// Worst returns the worst level of findings. It is OK when there are none.
func Worst(all []Finding) Level {
	switch {
	case Count(all, Failed) > 0:
		return Failed
	case Count(all, Warning) > 0:
		return Warning
	}
	return OK
}

// Count returns the number of findings of a level.
func Count(all []Finding, level Level) (n int) {
	for _, f := range all {
		if f.Level == level {
			n++
		}
	}
	return n
}

// Check is one check, or several that run one after the other.
type Check struct {
	// Name describes the check. Upstream and Clusters are set in the findings.
	Name, Upstream, Clusters string
	Run                      func(ctx context.Context) []Finding
}

// maxAtOnce is the most checks that run at the same time.
const maxAtOnce = 16

// Run runs checks at the same time, each with a context that ends after limit. It returns their findings
// in the order of checks, after all have returned.
func Run(ctx context.Context, limit time.Duration, checks []Check) []Finding {
	found := make([][]Finding, len(checks))
	var group errgroup.Group
	group.SetLimit(maxAtOnce)
	for i, c := range checks {
		group.Go(func() error {
			bounded, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			found[i] = c.Run(bounded)
			for k := range found[i] {
				found[i][k].Upstream, found[i][k].Clusters = c.Upstream, c.Clusters
			}
			return nil
		})
	}
	_ = group.Wait() // no check returns an error
	return slices.Concat(found...)
}
