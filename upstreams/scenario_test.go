package upstreams

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"meshrelay/adsclient"
	"meshrelay/config"
	"meshrelay/internal/fakexds"
	"meshrelay/mirror"
	"meshrelay/state"
)

var update = flag.Bool("update", false, "write what the scenarios in testdata print into them")

// TestScenarios replays testdata/*.txt. A file is a scenario; its name is the rule. It has
// blocks: commands, a line "----", and what they print, up to an empty line. A line that
// begins with # is a comment. The commands are the methods of scenario.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { replay(t, file) })
		})
	}
}

// replay runs a scenario and compares what it prints.
func replay(t *testing.T, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := &scenario{t: t, revisions: map[string][]state.Record{}, ids: map[string]string{}}
	defer func() { s.stop() }()
	var out, printed strings.Builder
	expected := false
	lines := bufio.NewScanner(strings.NewReader(string(text)))
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		switch {
		case line == "":
			expected = false
		case line == "----":
			expected = true
			out.WriteString(line + "\n" + printed.String())
			printed.Reset()
			continue
		case expected:
			continue
		case !strings.HasPrefix(line, "#"):
			words := strings.Fields(line)
			do := s.commands()[words[0]]
			if do == nil {
				t.Fatalf("%s:%d: %s: want one of %v", file, n, words[0], slices.Sorted(maps.Keys(s.commands())))
			}
			if err := do(words[1:]); err != nil {
				fmt.Fprintf(&printed, "error: %v\n", err)
			}
			synctest.Wait()
			printed.WriteString(s.printed.String())
			s.printed.Reset()
		}
		out.WriteString(line + "\n")
	}
	if left := printed.String(); left != "" {
		t.Errorf("%s: what the last commands print is not expected:\n%s", file, left)
	}
	if *update {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(string(text), out.String()); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// scenario is an upstream that a script plays, and an operator.
type scenario struct {
	t       *testing.T
	printed strings.Builder
	cfg     func(*config.Upstream, *config.Node)
	s       *xdsScript
	stop    func()
	// answered are the types of the stream that were answered; delta is its protocol.
	answered map[string]bool
	delta    bool
	// revisions and ids are what the script has given names to.
	revisions map[string][]state.Record
	ids       map[string]string
}

func (c *scenario) commands() map[string]func(args []string) error {
	return map[string]func([]string) error{
		"upstream":   c.upstream,
		"connect":    c.connect,
		"answer":     c.answer,
		"rest":       c.rest,
		"push":       c.push,
		"disconnect": func([]string) error { c.s.disconnects(); return nil },
		"wait":       c.wait,
		"restart":    c.restart,
		"reload":     c.reload,
		"remember":   func(args []string) error { c.revisions[args[0]] = c.s.x.kept(); return nil },
		"freeze":     c.freeze,
		"unfreeze":   c.unfreeze,
		"release":    c.release,
		"rollback":   c.rollback,
		"show":       c.show,
		"held":       c.held,
	}
}

var scenarioKinds = map[string]string{
	"se": "networking.istio.io/v1/ServiceEntry", "vs": "networking.istio.io/v1/VirtualService", "dr": "networking.istio.io/v1/DestinationRule",
}

// guardOf parses the settings of a guard: percent, count, empty, holdFor.
func guardOf(args []string) (config.Guard, error) {
	g := config.Guard{Percent: 30, Count: 10, Empty: config.EmptyHold, HoldFor: config.OpenEnded(10 * time.Minute)}
	for _, arg := range args {
		name, value, _ := strings.Cut(arg, "=")
		number, _ := strconv.Atoi(value)
		switch name {
		case "percent":
			g.Percent = number
		case "count":
			g.Count = number
		case "empty":
			g.Empty = value
		case "holdFor":
			d, _ := time.ParseDuration(value) // forever is 0
			g.HoldFor = config.OpenEnded(d)
		default:
			return g, fmt.Errorf("no setting %q", name)
		}
	}
	return g, nil
}

// reload takes over other settings of the guard.
func (c *scenario) reload(args []string) error {
	g, err := guardOf(args)
	if err != nil {
		return err
	}
	c.s.x.gate.setPolicy(config.Upstream{Name: "east", Guard: g})
	return nil
}

// upstream makes one, with the settings of its guard.
func (c *scenario) upstream(args []string) error {
	g, err := guardOf(args)
	if err != nil {
		return err
	}
	c.cfg = func(u *config.Upstream, _ *config.Node) { u.Guard = g }
	cfg, node := xdsConfig("127.0.0.1:1")
	c.cfg(&cfg, &node)
	c.s = &xdsScript{t: c.t, store: mirror.NewStore(), warns: &warnings{}}
	x, err := NewXDS(cfg, node, config.Provenance{}, c.s.store, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	c.s.x = x
	c.run()
	return nil
}

// run has the gate do what the passing of time demands.
func (c *scenario) run() {
	c.s.x.gate.keeps = true
	c.s.x.table.later = func(kind mirror.Kind) { c.s.late = append(c.s.late, kind) }
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	gate := c.s.x.gate
	go func() { done <- gate.run(ctx) }()
	c.stop = func() { cancel(); c.s.ok(<-done) }
}

// connect opens a stream: connect [sotw|delta].
func (c *scenario) connect(args []string) error {
	c.delta, c.answered = slices.Contains(args, "delta"), map[string]bool{}
	protocol := adsclient.SotW
	if c.delta {
		protocol = adsclient.Delta
	}
	c.s.open(protocol, false)
	return nil
}

// answer tells all that the upstream has of a kind: answer KIND NAME...
func (c *scenario) answer(args []string) error {
	url := scenarioKinds[args[0]]
	c.answered[url] = true
	err := c.send(url, nil, resourcesOf(url, args[1:]))
	c.s.lapse()
	return err
}

func (c *scenario) send(url string, removed []string, has []fakexds.Resource) error {
	if c.delta {
		return c.s.delta(url, removed, has...)
	}
	return c.s.sotw(url, has...)
}

// rest answers all types that were not answered on the stream, or not repeated, with
// nothing.
func (c *scenario) rest([]string) error {
	for _, url := range c.s.x.types {
		if asked := slices.Contains(c.s.asked(), url); c.answered[url] && !asked {
			continue
		}
		c.answered[url] = true
		if err := c.send(url, nil, nil); err != nil {
			return err
		}
	}
	c.s.lapse()
	return nil
}

// push changes a kind on a delta stream: push KIND +NAME -NAME...
func (c *scenario) push(args []string) error {
	var added, removed []string
	url := scenarioKinds[args[0]]
	for _, arg := range args[1:] {
		if name, ok := strings.CutPrefix(arg, "-"); ok {
			removed = append(removed, expand(name)...)
		} else {
			added = append(added, strings.TrimPrefix(arg, "+"))
		}
	}
	for i := range removed {
		removed[i] = "ns/" + removed[i]
	}
	return c.s.delta(url, removed, resourcesOf(url, added)...)
}

func (c *scenario) wait(args []string) error {
	d, err := time.ParseDuration(args[0])
	c.s.after(d)
	return err
}

// restart begins a new process with what is on disk.
func (c *scenario) restart([]string) error {
	c.stop()
	c.s.x.end()
	_, meta := c.s.x.gate.TakeChanges()
	saved := state.Saved{Meta: meta}
	for _, kind := range c.s.store.Kinds() {
		for _, one := range c.s.store.List(kind, "") {
			saved.Records = append(saved.Records, state.Record{Resource: one, TypeURL: kind.PreferredTypeURL()})
		}
	}
	c.s = restored(c.t, saved, true, c.cfg)
	c.s.x.gate.follows(c.s.x)
	c.run()
	return nil
}

// orderOf parses flags as the commands have them. An ID may be one that "held" gave a name to.
func (c *scenario) orderOf(args []string) (o Order, err error) {
	for _, arg := range args {
		name, value, _ := strings.Cut(arg, "=")
		switch name {
		case "--dry-run":
			o.DryRun = true
		case "--force":
			o.Force = true
		case "--all":
			o.All = true
		case "--hold":
			o.Hold = c.ids[value]
		case "--for":
			o.For, err = time.ParseDuration(value)
		case "--only":
			var scope Scope
			scope, err = ParseScope(value)
			o.Only = append(o.Only, scope)
		default:
			err = fmt.Errorf("no flag %s", arg)
		}
		if err != nil {
			return o, err
		}
	}
	return o, nil
}

func (c *scenario) freeze(args []string) error {
	o, err := c.orderOf(args)
	if err == nil {
		_, err = c.s.x.gate.freeze(o)
	}
	return err
}

func (c *scenario) unfreeze(args []string) error {
	o, err := c.orderOf(args)
	if err != nil {
		return err
	}
	e, err := c.s.x.gate.unfreezing(o, c.s.x.kept())
	if err != nil || o.DryRun {
		c.effect(e, err)
		return err
	}
	return c.s.x.restateAll(c.s.x.gate.thawNow)
}

func (c *scenario) release(args []string) error {
	o, err := c.orderOf(args)
	if err != nil {
		return err
	}
	e, err := c.s.x.gate.release(o)
	c.effect(e, err)
	return err
}

// rollback serves what was remembered: rollback NAME.
func (c *scenario) rollback(args []string) error {
	records := c.revisions[args[0]]
	if slices.Contains(args, "--dry-run") {
		c.effect(c.s.x.gate.rollingBack(records), nil)
		return nil
	}
	c.s.x.gate.rollBack(Order{To: 1}, records)
	return c.s.x.restateAll(nil)
}

func (c *scenario) effect(e Effect, err error) {
	if err == nil {
		fmt.Fprintf(&c.printed, "added %d, changed %d, removed %d, kept %d, held %d\n", e.Added, e.Changed, e.Removed, e.Kept, e.Held)
	}
}

// show prints what is served, and what is held and frozen.
func (c *scenario) show([]string) error {
	var served []string
	counts := c.s.store.Counts()
	for _, name := range slices.Sorted(maps.Keys(scenarioKinds)) {
		kind, _, err := mirror.ParseTypeURL(scenarioKinds[name])
		if err != nil {
			return err
		}
		served = append(served, fmt.Sprintf("%d %s", counts[kind], name))
	}
	fmt.Fprintf(&c.printed, "serves %s\n", strings.Join(served, ", "))
	st := c.s.x.Status()
	if h := st.Held; h != nil {
		fmt.Fprintf(&c.printed, "held: %d of %d, %s; clock %s", h.Removals, h.Of, h.Reason, h.Clock)
		if !h.Until.IsZero() {
			fmt.Fprintf(&c.printed, ", %v left", time.Until(h.Until).Round(time.Second))
		}
		if h.Left != "" {
			fmt.Fprintf(&c.printed, ", %s left", h.Left)
		}
		c.printed.WriteString("\n")
	}
	if f := st.Frozen; f != nil {
		fmt.Fprintf(&c.printed, "frozen: %d differ\n", f.Waiting)
	}
	if len(c.s.asked()) > 0 {
		c.printed.WriteString("asked to repeat\n")
	}
	return nil
}

// held prints the deletions that are held, and remembers the ID under a name: held [NAME].
func (c *scenario) held(args []string) error {
	h, ok := c.s.x.gate.heldDeletions()
	if !ok {
		return errors.New("nothing is held")
	}
	if len(args) > 0 {
		c.ids[args[0]] = h.ID
		return nil
	}
	for _, d := range h.Deletions {
		fmt.Fprintf(&c.printed, "%s %s/%s for %v\n", d.Kind, d.Namespace, d.Name, time.Since(d.Since).Round(time.Second))
	}
	return nil
}

func resourcesOf(url string, names []string) (out []fakexds.Resource) {
	kind, _, _ := mirror.ParseTypeURL(url)
	for _, word := range names {
		for _, name := range expand(word) {
			out = append(out, emptyOf(kind, "ns/"+name))
		}
	}
	return out
}

// expand makes a0 a1 a2 of a0..2.
func expand(word string) (names []string) {
	first, last, ok := strings.Cut(word, "..")
	prefix := strings.TrimRight(first, "0123456789")
	from, _ := strconv.Atoi(first[len(prefix):])
	to, err := strconv.Atoi(last)
	if !ok || err != nil {
		return []string{word}
	}
	for i := from; i <= to; i++ {
		names = append(names, prefix+strconv.Itoa(i))
	}
	return names
}
