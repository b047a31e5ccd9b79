package upstreams_test

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/federation/services"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/golden"
	"meshrelay/mirror"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
)

// TestScenarios replays testdata/*.txt. A file is a scenario; its name is the rule. It has
// blocks: commands, a line "----", and what they print, up to an empty line. A line that
// begins with # is a comment; the first one names the protocol rules that the scenario proves.
// The commands are in scenario.commands, the words for kinds and resources in scenario_words_test.go. A new
// scenario needs no output: -update writes it.
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
	c := &scenario{adapter: newAdapter(t), ids: map[string]string{}, remembered: map[string]memory{}}
	defer func() { c.stop() }()
	var out, printed strings.Builder
	expected := false
	lines := bufio.NewScanner(strings.NewReader(string(text)))
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		switch {
		case line == "":
			expected = false
			if *golden.Update && printed.Len() > 0 { // a block that is new
				out.WriteString("----\n" + printed.String())
				printed.Reset()
			}
		case line == "----":
			expected = true
			out.WriteString(line + "\n" + printed.String())
			printed.Reset()
			continue
		case expected:
			continue
		case !strings.HasPrefix(line, "#"):
			if err := c.do(strings.Fields(line)); err != nil {
				if errors.Is(err, errScript) {
					t.Fatalf("%s:%d: %v", file, n, err)
				}
				fmt.Fprintf(&c.printed, "error: %v\n", err)
			}
			synctest.Wait()
			printed.WriteString(c.plain(c.printed.String()))
			c.printed.Reset()
		}
		out.WriteString(line + "\n")
	}
	if left := printed.String(); left != "" && !*golden.Update {
		t.Errorf("%s: what the last commands print is not expected:\n%s", file, left)
	}
	if *golden.Update {
		if left := printed.String(); left != "" {
			out.WriteString("----\n" + left)
		}
	}
	golden.Check(t, file, out.String())
}

// errScript is of a script that can not be replayed.
var errScript = errors.New("wrong script")

// scenario is an upstream that a script plays, an operator, and a disk.
type scenario struct {
	*adapter
	printed strings.Builder
	// answered are the types of the stream that were answered; delta is its protocol.
	answered map[string]bool
	delta    bool
	// remembered and ids are what the script has given names to.
	remembered map[string]memory
	ids        map[string]string
}

// memory is what was served, and the revision that it has on disk.
type memory struct {
	revision uint64
	served   []*mirror.Resource
}

func (c *scenario) do(words []string) error {
	do := c.commands()[words[0]]
	if do == nil {
		return fmt.Errorf("%w: %s: want one of %v", errScript, words[0], slices.Sorted(maps.Keys(c.commands())))
	}
	return do(words[1:])
}

func (c *scenario) commands() map[string]func(args []string) error {
	return map[string]func([]string) error{
		// The config.
		"upstream": func(args []string) error { return c.begin("xds", args) },
		"files":    func(args []string) error { return c.begin("file", args) },
		"reload":   c.reload,
		// The relay.
		"restart": func(args []string) error { return c.again(true, args) },
		"kill":    func(args []string) error { return c.again(false, args) },
		"wait":    c.wait,
		"times":   c.times,
		// A stream.
		"connect":    c.connect,
		"answer":     func(args []string) error { return c.answer(args, true, false) },
		"say":        func(args []string) error { return c.answer(args, false, false) },
		"relist":     func(args []string) error { return c.answer(args, true, true) },
		"rest":       c.rest,
		"silent":     c.silent,
		"push":       c.push,
		"endpoints":  c.endpoints,
		"disconnect": func([]string) error { c.disconnected(); return nil },
		"resume":     c.resume,
		// Files.
		"write":   c.write,
		"delete":  func(args []string) error { return os.Remove(c.path(args[0])) },
		"unmount": func([]string) error { return os.Rename(c.dir, c.dir+".away") },
		"mount":   func([]string) error { return os.Rename(c.dir+".away", c.dir) },
		"read":    func([]string) error { c.read(); return nil },
		// An operator.
		"freeze":   c.freeze,
		"unfreeze": c.unfreeze,
		"release":  c.release,
		"rollback": c.rollback,
		"remember": c.remember,
		// Commands that show the state.
		"show":     c.show,
		"status":   c.status,
		"list":     c.list,
		"origin":   c.origin,
		"same":     c.same,
		"held":     c.held,
		"explain":  c.explain,
		"left-out": c.leftOut,
		"warnings": func([]string) error { c.printf("%d warnings\n", c.warned()); return nil },
		// The disk.
		"journal":   c.journal,
		"lose-disk": func([]string) error { c.loseDisk(); return nil },
	}
}

func (c *scenario) printf(format string, args ...any) { fmt.Fprintf(&c.printed, format, args...) }

func (c *scenario) begin(kind string, args []string) error {
	c.answered = map[string]bool{}
	return c.start(kind, args)
}

// again begins a new process: restart [down=DURATION] [SETTING...]. A process that is killed does
// not write to the disk at its end.
func (c *scenario) again(graceful bool, args []string) error {
	c.answered = map[string]bool{}
	var down time.Duration
	if len(args) > 0 {
		if text, ok := strings.CutPrefix(args[0], "down="); ok {
			down, _ = time.ParseDuration(text)
			args = args[1:]
		}
	}
	return c.restart(graceful, down, args)
}

// wait lets time pass. A name that may still turn up in another API version has a second.
func (c *scenario) wait(args []string) error {
	d, err := time.ParseDuration(args[0])
	if err != nil {
		return fmt.Errorf("%w: %w", errScript, err)
	}
	if d >= time.Second {
		c.after(time.Second)
		c.lapse()
		d -= time.Second
	}
	c.after(d)
	return nil
}

func (c *scenario) after(d time.Duration) {
	await.Settle(d)
}

// times repeats commands, with the turn in place of {i}: times N COMMAND; COMMAND...
func (c *scenario) times(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return fmt.Errorf("%w: %w", errScript, err)
	}
	for i := range n {
		all := strings.ReplaceAll(strings.Join(args[1:], " "), "{i}", strconv.Itoa(i))
		for command := range strings.SplitSeq(all, ";") {
			if err := c.do(strings.Fields(command)); err != nil {
				return err
			}
			synctest.Wait()
		}
	}
	return nil
}

// connect opens a stream: connect [delta] [relay] [by=IDENTITY...].
func (c *scenario) connect(args []string) error {
	c.delta, c.answered = slices.Contains(args, "delta"), map[string]bool{}
	var names []string
	for _, arg := range args {
		if name, is := strings.CutPrefix(arg, "by="); is {
			names = append(names, name)
		}
	}
	c.opened(c.delta, slices.Contains(args, "relay"), names)
	return nil
}

// answer tells all that the upstream has of a type: answer TYPE RESOURCE... After say, what is
// gone of the type may still turn up in another API version of it.
func (c *scenario) answer(args []string, lapses, relist bool) error {
	url := typeURL(args[0])
	c.answered[url] = true
	err := c.received(url, c.delta, relist, nil, elementsOf(url, args[1:]))
	if lapses {
		c.lapse()
	}
	return err
}

// rest answers all types that were not answered on the stream, or not repeated, with nothing:
// rest [--every DURATION] [--but TYPE...].
func (c *scenario) rest(args []string) error {
	var pause time.Duration
	var but []string
	for i := 0; i < len(args); i++ {
		switch args[i] {
		case "--every":
			pause, _ = time.ParseDuration(args[i+1])
			i++
		case "--but":
			for _, arg := range args[i+1:] {
				but = append(but, typeURL(arg))
			}
			i = len(args)
		}
	}
	for _, url := range c.types() {
		asked := slices.Contains(c.asked(), url)
		if c.answered[url] && !asked || slices.Contains(but, url) {
			continue
		}
		if kind, _, err := mirror.ParseTypeURL(url); err == nil && c.cfg != nil && !records.Asked(c.cfg.Upstreams[0])(kind) {
			continue
		}
		c.answered[url] = true
		if err := c.received(url, c.delta, false, nil, nil); err != nil {
			return err
		}
		if pause > 0 {
			c.after(pause)
		}
	}
	c.lapse()
	return nil
}

// silent has the server give no answer for the types that were not answered on the stream. It prints which
// of them are awaited all the same.
func (c *scenario) silent([]string) error {
	var types []string
	for _, url := range c.types() {
		if !c.answered[url] {
			types = append(types, url)
		}
	}
	awaited := c.s.x.HandleSilence(types)
	if len(awaited) > 3 {
		awaited = append(awaited[:1:1], fmt.Sprintf("and %d more", len(awaited)-1))
	}
	c.printf("awaits %s\n", orNothing(awaited))
	return nil
}

// push changes a type on a delta stream: push TYPE +RESOURCE -NAME...
func (c *scenario) push(args []string) error {
	var added, removed []string
	url := typeURL(args[0])
	for _, arg := range args[1:] {
		if name, ok := strings.CutPrefix(arg, "-"); ok {
			removed = append(removed, namesOf(name)...)
		} else {
			added = append(added, strings.TrimPrefix(arg, "+"))
		}
	}
	return c.received(url, c.delta, false, removed, elementsOf(url, added))
}

// endpoints has the source tell the endpoints of a host, or of selected workloads: endpoints HOST ADDRESS..., endpoints CLUSTER ADDRESS...
func (c *scenario) endpoints(args []string) error {
	cluster := "outbound|80||" + args[0]
	if strings.HasPrefix(args[0], services.SelectedPrefix) {
		cluster = args[0]
	}
	c.assigned[cluster] = assignmentOf(cluster, args[1:]...)
	c.tellEndpoints(cluster)
	return nil
}

// resume prints what the next stream resumes with: resume TYPE.
func (c *scenario) resume(args []string) error {
	versions := c.resumeVersions(typeURL(args[0]))
	var out []string
	for _, name := range slices.Sorted(maps.Keys(versions)) {
		out = append(out, fmt.Sprintf("%s=%q", name, versions[name]))
	}
	c.printf("resumes with %s\n", orNothing(out))
	return nil
}

// write writes a file: write FILE TYPE RESOURCE... [and TYPE RESOURCE...], or write FILE broken.
func (c *scenario) write(args []string) error {
	text := "a: [\n"
	if args[1] != "broken" {
		text = documentsOf(args[1:])
	}
	return os.WriteFile(c.path(args[0]), []byte(text), 0o600)
}

func (c *scenario) path(file string) string { return filepath.Join(c.dir, file) }

// orderOf parses flags as the commands have them. An ID may be a name that "held" gave.
func (c *scenario) orderOf(args []string) (o intake.Order, err error) {
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
		case "--only":
			var scope intake.Part
			scope, err = intake.ParsePart(value)
			o.Only = append(o.Only, scope)
		default:
			err = fmt.Errorf("%w: no flag %s", errScript, arg)
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
		_, err = c.m.Order(c.t.Context(), c.name, "freeze", o)
	}
	return err
}

func (c *scenario) unfreeze(args []string) error {
	o, err := c.orderOf(args)
	if err != nil {
		return err
	}
	e, err := c.m.Order(c.t.Context(), c.name, "unfreeze", o)
	if o.DryRun {
		c.effect(e, err)
	}
	return err
}

func (c *scenario) release(args []string) error {
	o, err := c.orderOf(args)
	if err != nil {
		return err
	}
	e, err := c.m.Order(c.t.Context(), c.name, "release", o)
	c.effect(e, err)
	return err
}

// rollback serves what was remembered: rollback NAME.
func (c *scenario) rollback(args []string) error {
	o, err := c.orderOf(args[1:])
	if err != nil {
		return err
	}
	o.To = c.remembered[args[0]].revision
	e, err := c.m.Order(c.t.Context(), c.name, "rollback", o)
	if o.DryRun {
		c.effect(e, err)
	}
	return err
}

func (c *scenario) effect(e intake.Effect, err error) {
	if err == nil {
		c.printf("added %d, changed %d, removed %d, kept %d, held %d\n", e.Added, e.Changed, e.Removed, e.Kept, e.Held)
	}
}
