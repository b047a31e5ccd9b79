package registry_test

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"meshrelay/upstreams/kubernetes/clusters/registry"
)

// play is a script: lines with an event, and lines that begin with "- " with what it leads to.
//
//	policy KEY=VALUE...          other rules: removeAfter, percent, count, max, ignore, name, id, istiod, other
//	listed ID=KUBECONFIG...      all that there is; KUBECONFIG@ORIGIN, !PROBLEM in its place, ^PRIORITY;
//	                             "?" as ID for an origin that can not be used
//	failed TEXT                  it can not be read
//	wait DURATION                time passes
//	release, remove ID           orders
//	restart                      all that is kept is read again
//	- clusters ID STATE KUBECONFIG, ...     all that are followed; "none" for no kubeconfig
//	- refused ID: TEXT                      one is not followed, for a reason with that text
//	- nothing refused
//	- problem ID: TEXT, note ID: TEXT       what is shown of a cluster
//	- set, same                             other upstreams than before or not
//	- rotations ID N
//	- error TEXT                            of an order
//	- wakes DURATION                        from now
type play struct {
	t      *testing.T
	line   string
	now    time.Time
	policy registry.Policy
	r      *registry.Registry
	out    registry.Output
	err    error
}

func TestScripts(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(paths) < 10 {
		t.Fatalf("%d scripts: %v", len(paths), err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			p := &play{t: t, now: time.Unix(1_700_000_000, 0), policy: registry.Policy{RemoveAfter: 24 * time.Hour, Percent: 30, Count: 1, Max: 100}}
			p.r = registry.New(p.policy)
			expects := 0
			for i, line := range strings.Split(string(text), "\n") {
				if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
					continue
				}
				p.line = fmt.Sprintf("%s:%d: %s", path, i+1, line)
				if expect, is := strings.CutPrefix(line, "- "); is {
					expects++
					p.expect(expect)
					continue
				}
				if p.err != nil {
					t.Errorf("before %s: %v", p.line, p.err)
				}
				p.event(line)
			}
			if expects == 0 {
				t.Errorf("%s expects nothing", path)
			}
		})
	}
}

func (p *play) step(e registry.Event) { p.out, p.err = p.r.Step(p.now, e) }

func (p *play) event(line string) {
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case "policy":
		for _, pair := range strings.Fields(rest) {
			key, value, _ := strings.Cut(pair, "=")
			p.set(key, value)
		}
		p.step(registry.SetPolicy{Policy: p.policy})
	case "listed":
		var entries []registry.Entry
		for _, text := range strings.Fields(rest) {
			entries = append(entries, entryOf(text))
		}
		p.step(registry.Listed{Entries: entries})
	case "failed":
		p.step(registry.Failed{Err: errors.New(rest)})
	case "wait":
		d, err := time.ParseDuration(rest)
		if err != nil {
			p.t.Fatal(p.line, err)
		}
		p.now = p.now.Add(d)
		p.step(registry.Tick{})
	case "release":
		p.step(registry.Release{})
	case "remove":
		p.step(registry.Remove{ID: rest})
	case "restart":
		kept := p.r.Clusters()
		for i := range kept {
			kept[i].Kubeconfig = nil
		}
		p.r = registry.New(p.policy)
		p.step(registry.Restored{Clusters: kept})
	default:
		p.t.Fatal("no event: " + p.line)
	}
}

func (p *play) set(key, value string) {
	number := func() int {
		n, err := strconv.Atoi(value)
		if err != nil {
			p.t.Fatal(p.line, err)
		}
		return n
	}
	switch key {
	case "removeAfter":
		d, err := time.ParseDuration(value)
		if err != nil {
			p.t.Fatal(p.line, err)
		}
		p.policy.RemoveAfter = d
	case "percent":
		p.policy.Percent = number()
	case "count":
		p.policy.Count = number()
	case "max":
		p.policy.Max = number()
	case "ignore":
		p.policy.Ignore = strings.Split(value, ",")
	case "name":
		p.policy.Names = map[string]string{value: "upstreams[0]"}
	case "id":
		p.policy.IDs = map[string]string{value: "upstream a is the API server of that cluster"}
	case "other": // another registry follows these
		p.policy.Others = map[string]registry.Other{}
		for _, id := range strings.FieldsFunc(value, func(r rune) bool { return r == ',' }) {
			p.policy.Others[registry.NameOf(id)] = registry.Other{ID: id, By: "clusters more", Origin: "file " + id}
		}
	default:
		p.t.Fatal("no policy: " + p.line)
	}
}

func entryOf(text string) (e registry.Entry) {
	id, rest, _ := strings.Cut(text, "=")
	rest, priority, _ := strings.Cut(rest, "^")
	e.Priority, _ = strconv.Atoi(priority)
	rest, origin, given := strings.Cut(rest, "@")
	if e.Origin = origin; !given {
		e.Origin = "secret " + id
	}
	if problem, bad := strings.CutPrefix(rest, "!"); bad {
		e.Problem = problem
	} else {
		e.Kubeconfig = []byte(rest)
	}
	if e.ID = id; id == "?" {
		e.ID = ""
	}
	return e
}

func (p *play) expect(line string) {
	word, rest, _ := strings.Cut(line, " ")
	id, text, _ := strings.Cut(rest, ":")
	text = strings.TrimSpace(text)
	of := func() (c registry.Cluster) {
		all := p.r.Clusters()
		i := slices.IndexFunc(all, func(c registry.Cluster) bool { return c.ID == strings.Fields(id)[0] })
		if i < 0 {
			p.t.Fatal("no such cluster: " + p.line)
		}
		return all[i]
	}
	var got string
	ok := false
	switch word {
	case "clusters":
		var all []string
		for _, c := range p.r.Clusters() {
			kubeconfig := string(c.Kubeconfig)
			if kubeconfig == "" {
				kubeconfig = "none"
			}
			all = append(all, fmt.Sprint(c.ID, " ", c.State, " ", kubeconfig))
		}
		got = strings.Join(all, ", ")
		ok = got == rest
	case "refused":
		some, _ := p.r.Refused()
		got = fmt.Sprint(some)
		ok = slices.ContainsFunc(some, func(r registry.Refused) bool { return cmp.Or(r.ID, "?") == id && strings.Contains(r.Reason, text) })
	case "nothing":
		some, total := p.r.Refused()
		got = fmt.Sprint(some)
		ok = len(some) == 0 && total == 0
	case "problem":
		got = of().Problem
		ok = got == text || text != "" && strings.Contains(got, text)
	case "note":
		got = of().Note
		ok = strings.Contains(got, text)
	case "set", "same":
		got = fmt.Sprint(p.out.Set)
		ok = p.out.Set == (word == "set")
	case "rotations":
		got = fmt.Sprint(strings.Fields(rest)[0], " ", of().Rotations)
		ok = got == rest
	case "failure":
		got = p.r.Failure()
		ok = got == rest
	case "error":
		got = fmt.Sprint(p.err)
		ok = errors.Is(p.err, registry.ErrNotPossible) && strings.Contains(got, rest)
		p.err = nil
	case "wakes":
		got = p.out.Wake.Sub(p.now).String()
		ok = got == rest
	default:
		p.t.Fatal("no expectation: " + p.line)
	}
	if !ok {
		p.t.Errorf("%s: it is %s", p.line, got)
	}
}

func TestNamesOfUpstreamsComeFromIDs(t *testing.T) {
	for id, want := range map[string]string{
		"east": "east", "East_1.eu": "east-1-eu", "-a-": "a", "___": "",
		strings.Repeat("a", 62) + "--b": strings.Repeat("a", 62),
	} {
		if got := registry.NameOf(id); got != want {
			t.Errorf("NameOf(%q) is %q, want %q", id, got, want)
		}
	}
}

func TestRefusalsAreBounded(t *testing.T) {
	r := registry.New(registry.Policy{Max: 2})
	var entries []registry.Entry
	for i := range 3000 {
		entries = append(entries, registry.Entry{ID: fmt.Sprintf("c%04d", i), Origin: "secret", Kubeconfig: []byte("x")})
	}
	out, err := r.Step(time.Unix(1, 0), registry.Listed{Entries: entries})
	some, total := r.Refused()
	if err != nil || len(r.Clusters()) != 2 || total != 2998 || len(some) != 500 || len(out.Notes) > 600 {
		t.Errorf("%d clusters, %d of %d refusals, %d notes: %v", len(r.Clusters()), len(some), total, len(out.Notes), err)
	}
}
