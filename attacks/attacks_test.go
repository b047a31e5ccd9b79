// Package attacks runs the relay as it is shipped, attacks it over the network, and measures what
// that costs: once, and by fifty at once. It owns the table of attacks in docs/attacks.md.
package attacks

import (
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"google.golang.org/grpc"

	"meshrelay/internal/testing/await"
)

var long = flag.Bool("long", false, "run every attack by fifty at once, too")

// Bounds of the costs of an attack.
const (
	many    = 50
	mostRSS = 274_000_000 // of one
	// mostOfOpen is of one upstream of a relay without a memory limit: a response that is asked for again lies beside
	// what the collector has not taken yet of the one before.
	mostOfOpen = 400 << 20
	mostByAll  = 512_000_000 // of fifty at once
	mostOfOne  = 64 << 20    // that a later change allocates
	mostLine   = 8 << 10     // of the log
	mostLines  = 10_000

	// These are for what API servers, kubeconfigs and ConfigMaps can cost, and who reaches the admin port.
	mostEdgeRSS   = 400 << 20 // of one
	mostEdgeByAll = 512 << 20 // of fifty at once, as in the manifest
	mostEdge      = 1 << 30   // that one allocates
)

// attack is one row of the table.
type attack struct {
	finding, name string
	// told is a pattern of what the relay tells the attacker, or its operator. Without it the
	// relay does what it is asked.
	told string
	// adds is a pattern of the names that the attacking upstream may rightly add to what is served.
	adds string
	// downstream, upstream and rest are settings of the relay's config.
	downstream, upstream, rest string
	memory                     string // GOMEMLIMIT, for attacks of upstreams; others are made as in the manifest
	resources                  int    // that the honest upstream has more
	upstreams                  bool   // fifty are fifty upstreams
	files                      bool   // the attacking upstreams are directories
	delta                      bool   // the attacking upstreams speak delta
	server                     []grpc.ServerOption
	short                      bool // fifty at once are part of the short form
	once                       bool // fifty at once would be no other attack
	run                        func(s *stage, n int)

	// The rest is for the attacks of apiServerAttacks.
	edge    bool   // the mostEdge bounds count, and an honest API server is among the upstreams
	seldom  bool   // part of the long form only
	more    int64  // bytes allocated than mostEdge, because the server sends more than any bound can tell from a large one
	empty   int    // further upstreams, which are empty directories
	api     evil   // of the attacking upstreams, which are API servers
	section string // of their config
	limits  string // of one of them: fifty share the memory of the process
	hub     evil   // of the API server in whose objects clusters are found
	// clusters is where they are found, and what they may.
	clusters string
}

// result is what an attack has cost.
type result struct {
	rss        int64
	cost       time.Duration // CPU of the attack; it tells, and fails nothing: it grows with what else the machine does
	cpu        time.Duration // CPU of a later change
	allocated  int64         // bytes, by the relay, for the attack
	later      int64         // the same of a later change
	outcome    string
	bystanders string // unchanged, or what they were served
}

// TestNoAttackIsFeltByOthers runs every attack against a relay of its own, and shows what they
// cost as a table.
func TestNoAttackIsFeltByOthers(t *testing.T) {
	all := slices.Concat(attacks(), apiServerAttacks())
	ones, fifties := make([]*result, len(all)), make([]*result, len(all))
	t.Run("attack", func(t *testing.T) {
		for i, a := range all {
			t.Run(a.finding+" "+a.name, func(t *testing.T) {
				switch {
				case *long:
				case a.seldom:
					t.Skip("part of the long form: make attacks runs it")
				default:
					t.Parallel()
				}
				ones[i] = a.measure(t, 1)
				if !a.once && (*long || a.short) {
					fifties[i] = a.measure(t, many)
				}
			})
		}
	})
	t.Logf("\n%s\n%s", tableOf(false, all, ones, fifties), tableOf(true, all, ones, fifties))
}

// tableOf returns the table of the attacks of one kind, edge or not, that were measured.
func tableOf(edge bool, all []*attack, ones, fifties []*result) string {
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 1, ' ', 0)
	columns := []string{"attack", "RSS, one", "RSS, fifty", "CPU of a later change", "bystanders", "outcome"}
	if edge {
		columns = slices.Insert(columns, 3, "CPU")
	}
	row := func(cells ...string) { fmt.Fprintf(w, "| %s\t|\n", strings.Join(cells, "\t| ")) }
	row(columns...)
	row(slices.Repeat([]string{"---"}, len(columns))...)
	for i, a := range all {
		one, fifty := ones[i], fifties[i]
		if one == nil || a.edge != edge {
			continue // it was not asked for, or could not be measured
		}
		byAll := "-"
		if fifty != nil {
			byAll = megabytes(fifty.rss)
			one.cpu = max(one.cpu, fifty.cpu)
			if fifty.bystanders != unchanged {
				one.bystanders = fifty.bystanders
			}
		}
		cells := []string{a.finding + ": " + a.name, megabytes(one.rss), byAll, one.cpu.String(), one.bystanders, one.outcome}
		if edge {
			cells = slices.Insert(cells, 3, one.cost.String())
		}
		row(cells...)
	}
	w.Flush()
	return table.String()
}

func megabytes(n int64) string { return fmt.Sprintf("%d MB", n/1_000_000) }

const unchanged = "unchanged"

// measure runs an attack n times at once, and fails where it has cost too much or where others
// have noticed.
func (a *attack) measure(t *testing.T, n int) *result {
	s := newStage(t, a, n)
	old, err := s.connect(bystander, "")
	if err != nil {
		t.Fatal(err)
	}
	before, _ := old.all()
	if *long { // else its cost has some of the start
		s.settle()
	}
	r := &result{outcome: "nothing is refused"}
	began, had := s.cpu(), s.allocated()
	a.run(s, n)
	telling := regexp.MustCompile(a.told)
	s.await(fmt.Sprintf("%q to be told", a.told), func() bool { return telling.MatchString(s.allTold()) })
	if !s.settle() {
		t.Errorf("by %d: the relay computes on and on", n)
	}
	r.cost, r.allocated = s.cpu()-began, s.allocated()-had
	gone := func() bool {
		if s.gone() {
			r.rss, r.bystanders = s.rss(), "the relay is gone"
			t.Errorf("by %d: the relay is gone; its RSS was %s, its CPU %v", n, megabytes(r.rss), r.cost)
		}
		return s.gone()
	}
	if gone() {
		return r
	}
	r.bystanders = s.compare(a, old, before)
	r.cpu, r.later = time.Hour, math.MaxInt64
	least := 1
	if *long {
		least = 2
	}
	for n := 0; n < least || n < 4 && r.later > mostOfOne; n++ { // one of them may see other work end
		used, had, was := s.cpu(), s.allocated(), old.get("shop/cart")
		s.setEast(n+1, a.resources)
		s.east.Push(entryType)
		s.await("a later change to be served", func() bool { return old.get("shop/cart") != was })
		if a.edge {
			s.changeNorth(old, n)
		}
		s.settle()
		r.cpu, r.later = min(r.cpu, s.cpu()-used), min(r.later, s.allocated()-had)
	}
	r.rss = s.rss()
	if gone() {
		return r
	}
	told := s.allTold()
	if a.told != "" {
		m := telling.FindString(told)
		if r.outcome = "refused: " + m; m == "" {
			t.Errorf("by %d: nothing tells %q", n, a.told)
		}
	}
	if i := strings.IndexFunc(told, func(c rune) bool { return c < ' ' && c != '\n' || c >= 0x7f && c < 0xa0 }); i >= 0 {
		t.Errorf("by %d: a control character is told: %q", n, told[max(0, i-100):i+1])
	}
	if lines := strings.Count(s.log.String(), "\n"); lines > mostLines {
		t.Errorf("by %d: %d lines are logged", n, lines)
	}
	for line := range strings.Lines(s.log.String()) {
		if len(line) > mostLine {
			t.Errorf("by %d: %d bytes are logged at once: %.300s", n, len(line), line)
		}
	}
	if a.adds != "" || a.upstreams || a.clusters != "" { // it is on disk, too
		s.restart(old)
		r.rss = max(r.rss, s.rss())
	}
	if os.Getenv("TOLD") != "" {
		t.Log(told)
	}
	t.Logf("by %d: RSS %s, CPU %v and of a later change %v, allocated %s and %s, bystanders %s, %s", n, megabytes(r.rss), r.cost, r.cpu, megabytes(r.allocated), megabytes(r.later), r.bystanders, r.outcome)
	most := a.most(n)
	if a.edge && n == 1 && r.allocated > mostEdge+a.more {
		t.Errorf("by %d: %s are allocated", n, megabytes(r.allocated))
	}
	if r.rss > most || r.rss == 0 {
		t.Errorf("by %d: RSS %s, more than %s", n, megabytes(r.rss), megabytes(most))
	}
	if r.later > mostOfOne {
		t.Errorf("by %d: for a later change of something else %s are allocated", n, megabytes(r.later))
	}
	if r.bystanders != unchanged {
		t.Errorf("by %d: %s", n, r.bystanders)
	}
	return r
}

// most returns how much memory n attacks at once may take, in bytes.
func (a *attack) most(n int) int64 {
	switch {
	case a.edge && n == 1:
		return mostEdgeRSS
	case a.edge:
		return mostEdgeByAll
	case n == 1 && a.upstreams && a.memory == "":
		return mostOfOpen
	case n == 1:
		return mostRSS
	}
	return mostByAll
}

// compare reports how an old client, or new ones, are served differently than before; "" if not.
func (s *stage) compare(a *attack, old *client, before map[string]string) string {
	newest := map[string]*client{"the client that was there": old}
	for _, cluster := range []string{"", "west-0", "east"} {
		if cluster == "east" && before["shop/cart"] != "" {
			continue // it is not sent its own
		}
		c, err := s.connect(newcomer, cluster)
		if err != nil {
			return fmt.Sprintf("a new client of cluster %q is refused: %v", cluster, err)
		}
		newest[fmt.Sprintf("a new client of cluster %q", cluster)] = c
	}
	adds := regexp.MustCompile("^(" + a.adds + ")$")
	for who, c := range newest {
		now, err := c.all()
		if err != nil {
			return fmt.Sprintf("%s has lost its stream: %v", who, err)
		}
		for name, body := range before {
			if now[name] != body {
				return fmt.Sprintf("%s is served another %s", who, name)
			}
		}
		for name := range now {
			if _, ok := before[name]; !ok && !adds.MatchString(name) {
				return fmt.Sprintf("%s is served %q", who, name)
			}
		}
	}
	return unchanged
}

// restart starts the relay again, and waits until it serves what it did.
func (s *stage) restart(old *client) {
	s.kill()
	was := old.get("shop/cart")
	s.start()
	c, err := s.connect(newcomer, "")
	if err != nil {
		s.Errorf("after a restart: %v", err)
		return
	}
	s.await("the same after a restart", func() bool { return c.get("shop/cart") == was })
	if *long {
		s.settle()
	}
}

// validate runs relay validate, which must refuse a config for the reason why, and at a low cost.
func (s *stage) validate(why, config string) {
	out := &lockedBuffer{}
	cmd := exec.CommandContext(await.Context(s.T), binary, "validate", "-c", s.write("other.yaml", config))
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var err error
	var rss int64
	await.Until(s, "relay validate ends", func() bool {
		rss = max(rss, residentMost(cmd.Process.Pid)) // getrusage would count what this process had
		select {
		case err = <-ended:
			return true
		default:
			return false
		}
	})
	if s.tell("%.4096s", out); err == nil || !strings.Contains(out.String(), why) {
		s.Errorf("%.200q: not refused for %q: %.500s", config, why, out)
	}
	if rss > mostRSS {
		s.Errorf("validate takes %s", megabytes(rss))
	}
}
