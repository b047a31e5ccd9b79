package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// holding gives a relay that was not started a state, and all its upstreams a guard.
func (r *relay) holding(guard string) *relay {
	r.t.Helper()
	change(r.t, r.config, "    plaintext: true\n", "    plaintext: true\n  guard: "+guard+"\n")
	b, err := os.ReadFile(r.config)
	if err != nil {
		r.t.Fatal(err)
	}
	writeFile(r.t, r.config, string(b)+"state: {dir: "+filepath.Join(filepath.Dir(r.config), "state")+"}\n")
	return r
}

// command runs a command of an operator, and returns what it prints and its exit code.
func (r *relay) command(args ...string) (out string, code int) {
	r.t.Helper()
	args = append(slices.Clone(args), "--admin", r.admin, "--timeout", patience.String())
	cmd := exec.CommandContext(r.t.Context(), binary(r.t, "RELAY_BIN", "../bin/relay"), args...)
	b, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		code = exit.ExitCode()
	case err != nil:
		r.t.Fatal(err)
	}
	return string(b), code
}

// must runs a command, and fails unless it exits with code and prints each of the parts.
func (r *relay) must(code int, command string, parts ...string) string {
	r.t.Helper()
	out, got := r.command(words(command)...)
	if got != code {
		r.t.Errorf("relay %s: exit code %d, want %d:\n%s", command, got, code, out)
	}
	for _, part := range parts {
		if !strings.Contains(out, part) {
			r.t.Errorf("relay %s: no %q in\n%s", command, part, out)
		}
	}
	return out
}

// words splits a command line. A word may be in quotes.
func words(line string) (all []string) {
	for _, w := range regexp.MustCompile(`"[^"]*"|\S+`).FindAllString(line, -1) {
		all = append(all, strings.Trim(w, `"`))
	}
	return all
}

// logged reports whether the relay has logged a line that has all of the parts.
func (r *relay) logged(parts ...string) bool {
	r.out.mu.Lock()
	defer r.out.mu.Unlock()
	for line := range strings.Lines(r.out.b.String()) {
		if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) }) {
			return true
		}
	}
	return false
}

// logs waits until the relay has logged a line that has all of the parts.
func (r *relay) logs(parts ...string) {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("relay %s logs %q", r.name, parts), func() error {
		if !r.logged(parts...) {
			return errors.New(r.out.tail())
		}
		return nil
	})
}

// held is what relay upstreams --held prints of one upstream.
type held struct {
	ID        string    `json:"id"`
	Clock     string    `json:"clock"`
	Reason    string    `json:"reason"`
	Removals  int       `json:"removals"`
	Since     time.Time `json:"since"`
	Deletions []struct {
		Kind      string    `json:"kind"`
		Namespace string    `json:"namespace"`
		Name      string    `json:"name"`
		Created   time.Time `json:"created"`
		Since     time.Time `json:"since"`
	} `json:"deletions"`
}

// keys returns the deletions as configz names them.
func (h held) keys() (keys []string) {
	for _, d := range h.Deletions {
		keys = append(keys, d.Kind+" "+d.Namespace+"/"+d.Name)
	}
	return keys
}

// held returns what is held of the one upstream, or nothing.
func (r *relay) held() (h held) {
	r.t.Helper()
	var all []held
	if err := json.Unmarshal([]byte(r.must(0, "upstreams --held -o json")), &all); err != nil {
		r.t.Fatal(err)
	}
	if len(all) > 0 {
		h = all[0]
	}
	return h
}

// holds waits until so many deletions are held, and returns them.
func (r *relay) holds(removals int) (h held) {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("relay %s holds %d deletions", r.name, removals), func() error {
		if h = r.held(); h.Removals != removals {
			return fmt.Errorf("it holds %+v", h)
		}
		return nil
	})
	return h
}

// revision is what relay history prints of one.
type revision struct {
	ID        uint64
	By        string
	Removed   int
	Resources int
}

// revisions returns those of the upstream east, newest first: at least one.
func (r *relay) revisions() (all []revision) {
	r.t.Helper()
	eventually(r.t, "there is a revision", func() error {
		all = nil
		if err := json.Unmarshal([]byte(r.must(0, "history east -o json")), &all); err != nil {
			return err
		}
		if len(all) == 0 {
			return errors.New("there is none")
		}
		return nil
	})
	return all
}

// event is what relay events prints of one.
type event struct{ Type, Upstream, Text, Reason string }

// awaits waits until the relay has events of these types in this order, among others, and returns its events since the first
// of them.
func (r *relay) awaits(types ...string) (all []event) {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("relay %s has the events %q", r.name, types), func() error {
		all = nil
		var have []event
		if err := json.Unmarshal([]byte(r.must(0, "events --limit 1000 -o json")), &have); err != nil {
			return err
		}
		rest := types
		for n, e := range have {
			if len(rest) > 0 && e.Type == rest[0] {
				if rest = rest[1:]; all == nil {
					all = have[n:]
				}
			}
		}
		if len(rest) > 0 {
			return fmt.Errorf("%+v", have)
		}
		return nil
	})
	return all
}

// virtualService and destinationRule are further kinds of configs.
func virtualService(name string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %s, namespace: shop, creationTimestamp: "2024-05-01T10:00:00Z"}
spec: {hosts: [%s.example], http: [{route: [{destination: {host: %s.example}}]}]}
`, name, name, name)
}

func destinationRule(name string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: %s, namespace: shop, creationTimestamp: "2024-05-01T10:00:00Z"}
spec: {host: %s.example, trafficPolicy: {loadBalancer: {simple: RANDOM}}}
`, name, name)
}

// eight gives an istiod eight configs of three kinds.
func (i *istiod) eight(t *testing.T) {
	t.Helper()
	for n := range 3 {
		i.write(t, fmt.Sprintf("s%d", n), fmt.Sprintf("s%d.example", n))
		writeFile(t, filepath.Join(i.configDir, fmt.Sprintf("v%d.yaml", n)), virtualService(fmt.Sprintf("v%d", n)))
	}
	for n := range 2 {
		writeFile(t, filepath.Join(i.configDir, fmt.Sprintf("d%d.yaml", n)), destinationRule(fmt.Sprintf("d%d", n)))
	}
}

// empty takes all configs from an istiod, at once: a guard may let a few go that come before the others.
func (i *istiod) empty(t *testing.T) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(i.configDir, "*.yaml"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no configs in %s: %v", i.configDir, err)
	}
	i.pause(func() {
		for _, path := range paths {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestASmallIstiodThatComesBackEmptyIsHeld(t *testing.T) {
	t.Parallel()
	east := newIstiod(t, "east")
	east.eight(t)
	east.start().ready()
	r := newRelay(t, "hub", []string{"east=" + east.grpc}).holding("{}").start().ready()
	third := newIstiod(t, "third", r.xds).start().ready()
	want := east.configs()
	if len(want) != 8 {
		t.Fatalf("%d configs: %v", len(want), want)
	}
	eventually(t, "all is there", func() error { return differs(third.configs(), want) })

	stop := watchFor(t, third, want)
	east.kill()
	east.empty(t)
	east.start().ready()
	h := r.holds(8)
	if got := h.keys(); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(maps.Keys(want))) {
		t.Errorf("held are %q", got)
	}
	if h.Clock != "none" || h.Reason == "" || h.Since.IsZero() {
		t.Errorf("the hold is %+v", h)
	}
	for _, d := range h.Deletions {
		if d.Since.Before(h.Since.Add(-time.Minute)) || d.Created.Format(time.DateOnly) != "2024-05-01" {
			t.Errorf("%s %s is held since %v, and was created at %v", d.Kind, d.Name, d.Since, d.Created)
		}
	}
	var asYAML []held
	if err := yaml.Unmarshal([]byte(r.must(0, "upstreams east --held -o yaml")), &asYAML); err != nil || len(asYAML) != 1 || asYAML[0].ID != h.ID || len(asYAML[0].Deletions) != 8 {
		t.Errorf("%v: as YAML it is %+v", err, asYAML)
	}
	table := r.must(0, "upstreams --held", "upstream east: hold "+h.ID, "8 deletions of 9 resources", // the MeshConfig stays
		"relay release east --hold "+h.ID)
	row := regexp.MustCompile(`(?m)^networking\.istio\.io/\w+ +shop +[svd]\d +[0-9ydhms]+ +\d+\w+$`)
	if n := len(row.FindAllString(table, -1)); n != 8 {
		t.Errorf("%d rows in\n%s", n, table)
	}
	if out := r.must(0, "status", "relay upstreams --held east"); strings.Contains(out, "relay release") {
		t.Errorf("the status offers the command that deletes:\n%s", out)
	}
	if body, err := httpGet("http://" + r.admin + "/ready"); err != nil || !contains(body, `see "relay upstreams --held east"`) {
		t.Errorf("/ready: %v: %s", err, body)
	}

	// Nothing of this changes anything.
	r.must(2, "release east", "hold "+h.ID, "shop")
	r.must(0, "release east --all --dry-run", "8 deletions would be released, 0 still held")
	r.must(0, "release east --dry-run --hold "+h.ID, "8 deletions would be released, 0 still held")
	r.must(1, "release east --hold nothing2", "is not known")
	r.must(1, "release east --only vs/elsewhere", "relay upstreams --held east")
	if again := r.held(); again.ID != h.ID || again.Removals != 8 {
		t.Errorf("the hold is %+v", again)
	}
	if lost := stop(); len(lost) > 0 {
		t.Errorf("lost: %v", lost)
	}

	// This deletion was not in the list.
	const late = "networking.istio.io/ServiceEntry shop/late"
	east.write(t, "late", "late.example")
	third.has(late, "late.example")
	stop = watchFor(t, third, third.configs())
	east.remove(t, "late")
	grown := r.holds(9)
	if grown.ID == h.ID {
		t.Errorf("the hold is still called %s", h.ID)
	}
	r.must(1, "release east --hold "+h.ID, "has grown by 1", "+ "+late, grown.ID)
	if lost := stop(); len(lost) > 0 {
		t.Errorf("lost: %v", lost)
	}

	r.must(0, `release east --only virtualservice/shop --reason "routes have moved"`, "3 deletions released, 6 still held", "VirtualService shop/v0")
	for name := range want {
		if strings.Contains(name, "VirtualService") {
			third.loses(name)
		}
	}
	rest := r.holds(6)
	if n := len(third.configs()); n != 6 {
		t.Errorf("%d configs, want 6", n)
	}
	r.must(0, `release east --reason "the rest, too" --hold `+rest.ID, "6 deletions released, 0 still held")
	eventually(t, "nothing is left", func() error { return differs(third.configs(), configs{}) })
	r.must(0, "upstreams --held", "No deletions are held.")
	eventually(t, "the history has the reasons", func() error {
		revisions := r.revisions()
		if len(revisions) < 2 || revisions[0].By != "release (the rest, too)" || revisions[1].By != "release (routes have moved)" || revisions[1].Removed != 3 {
			return fmt.Errorf("%+v", revisions)
		}
		return nil
	})
	r.logs("action=release", "target=east", `parameters="only=virtualservice/shop"`, `reason="routes have moved"`)
}

// The share, and an operator who takes whatever is held.
func TestReleaseAllCarriesOutWhateverIsHeld(t *testing.T) {
	t.Parallel()
	east := newIstiod(t, "east")
	east.eight(t)
	east.start().ready()
	r := newRelay(t, "hub", []string{"east=" + east.grpc}).holding("{holdFor: forever}").start().ready()
	f := dial(t, r.xds).follow(seV1, nil)
	f.mark()
	east.empty(t)
	if h := r.holds(8); h.Clock != "none" {
		t.Errorf("the clock is %s", h.Clock)
	}
	r.must(0, "release east --all --reason gone", "8 deletions released, 0 still held")
	eventually(t, "they go", func() error {
		if f.size() != 0 {
			return fmt.Errorf("%s", f.events())
		}
		return nil
	})
}

// holdFor gives the guard of a running relay another holdFor.
func (r *relay) holdFor(is string) {
	r.t.Helper()
	b, err := os.ReadFile(r.config)
	if err != nil {
		r.t.Fatal(err)
	}
	writeFile(r.t, r.config, regexp.MustCompile(`holdFor: \w+`).ReplaceAllString(string(b), "holdFor: "+is))
	r.must(0, "reload")
}

// The hold does not end before the test has it end.
func TestHeldDeletionsOfADeadIstiodStay(t *testing.T) {
	t.Parallel()
	east := newIstiod(t, "east")
	east.eight(t)
	east.start().ready()
	r := newRelay(t, "hub", []string{"east=" + east.grpc}).holding("{holdFor: 1h}").start().ready()
	third := newIstiod(t, "third", r.xds).start().ready()
	want := third.configs()
	stop := watchFor(t, third, want)
	dies := func() {
		t.Helper()
		east.empty(t)
		h := r.holds(8)
		eventually(t, "the clock has run for a second", func() error {
			if ran := time.Since(h.Since); ran < time.Second {
				return fmt.Errorf("%v", ran)
			}
			return nil
		})
		east.kill()
		eventually(t, "the clock stands still", func() error {
			if h := r.held(); h.Clock != "stopped" || h.Removals != 8 {
				return fmt.Errorf("%+v", h)
			}
			return nil
		})
	}
	dies()
	r.holdFor("1s")
	if h := r.held(); h.Clock != "over" || h.Removals != 8 {
		t.Errorf("the upstream can not repeat them, and the hold is %+v", h)
	}

	east.eight(t)
	east.start().ready()
	eventually(t, "the hold ends as the resources are there again", func() error {
		if h := r.held(); h.Removals > 0 {
			return fmt.Errorf("%+v", h)
		}
		return nil
	})
	if lost := stop(); len(lost) > 0 {
		t.Errorf("lost: %v", lost)
	}

	r.holdFor("1h")
	dies()
	east.start().ready() // with nothing
	eventually(t, "the clock runs again", func() error {
		if h := r.held(); h.Clock != "running" || h.Removals != 8 {
			return fmt.Errorf("%+v", h)
		}
		return nil
	})
	if err := differs(third.configs(), want); err != nil {
		t.Error(err)
	}
	r.holdFor("1s")
	eventually(t, "they go", func() error { return differs(third.configs(), configs{}) })
	losses := 0
	for _, e := range r.awaits("lost", "regained", "lost", "regained", "carried-out") {
		if e.Type == "lost" {
			losses++
		}
		if losses > 2 || e.Type == "carried-out" && !strings.Contains(e.Reason, "the upstream has repeated them") {
			t.Errorf("it has not repeated them on the same stream: %+v", e)
		}
	}
}

// A rollback to what the upstream had, and back to what it has.
func TestWhatGoesByUnfreezingAfterARollbackIsHeld(t *testing.T) {
	t.Parallel()
	east := newIstiod(t, "east")
	entries := func(n int) {
		t.Helper()
		var all strings.Builder
		for i := range n {
			all.WriteString(serviceEntry(fmt.Sprintf("e%d", i), fmt.Sprintf("e%d.example", i)) + "---\n")
		}
		writeFile(t, filepath.Join(east.configDir, "all.yaml"), all.String())
	}
	entries(100)
	east.start().ready()
	r := newRelay(t, "hub", []string{"east=" + east.grpc}).holding("{holdFor: 1h}").start().ready()
	third := newIstiod(t, "third", r.xds).start().ready()
	has := func(n int) {
		t.Helper()
		eventually(t, fmt.Sprintf("the istiod has %d", n), func() error {
			if got := len(third.configs()); got != n {
				return fmt.Errorf("it has %d", got)
			}
			return nil
		})
	}
	has(100)
	want := third.configs()
	var all revision
	eventually(t, "this is a revision", func() error {
		if all = r.revisions()[0]; all.Resources != 101 { // with the MeshConfig
			return fmt.Errorf("%+v", all)
		}
		return nil
	})
	rollback := fmt.Sprintf("rollback east --to %d", all.ID)
	entries(60)
	h := r.holds(40)
	r.must(0, "release east --hold "+h.ID)
	has(60)

	r.must(0, rollback+" --dry-run", "40 added, 0 changed, 0 removed, 61 unchanged")
	has(60)
	r.must(0, rollback+` --reason "not yet"`, "frozen at revision")
	has(100)
	stop := watchFor(t, third, want)
	r.must(0, "status", "not yet", "relay unfreeze east")
	r.must(0, "unfreeze east --dry-run", "0 added, 0 changed, 0 removed, 40 held by its guard, 61 unchanged")
	r.must(0, "unfreeze east", "upstream east is unfrozen", "40 deletions of 101 resources", "relay release east --hold "+h.ID)
	if again := r.holds(40); again.ID != h.ID {
		t.Errorf("the same deletions are called %s and %s", h.ID, again.ID)
	}

	// Out of contact nobody knows what the upstream has.
	r.must(0, "freeze east")
	east.kill()
	eventually(t, "unfreezing is refused", func() error {
		if out, code := r.command("unfreeze", "east", "--dry-run"); code != 1 || !strings.Contains(out, "--force") {
			return fmt.Errorf("%d: %s", code, out)
		}
		return nil
	})
	r.must(1, "unfreeze east", "out of contact", "--force")
	r.must(0, "status", "frozen")
	r.must(0, `unfreeze east --force --reason "as it was last"`, "upstream east is unfrozen", "40 deletions of 101 resources")
	if h := r.holds(40); h.Clock != "stopped" {
		t.Errorf("the hold is %+v", h)
	}
	if lost := stop(); len(lost) > 0 {
		t.Errorf("lost: %v", lost)
	}
	r.must(0, "release east --hold "+h.ID, "40 deletions released")
	has(60)
}
