package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// example is a copy of a directory of examples/ in which a free port replaces the port of each
// address of loopback. Nothing else is changed: the test runs what the reader sees.
type example struct {
	t    *testing.T
	name string
	dir  string
	// ports are the addresses in the files, and those in their places; and the IDs of holds.
	ports map[string]string
}

var loopback = regexp.MustCompile(`127\.0\.0\.1:\d+`)

// examples is how many there are.
const examples = 9

func newExample(t *testing.T, name string) *example {
	t.Helper()
	return copyOf(t, name, filepath.Join("..", "examples", name))
}

func copyOf(t *testing.T, name, from string) *example {
	t.Helper()
	x := &example{t: t, name: name, dir: t.TempDir(), ports: map[string]string{}}
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		text := string(b)
		if filepath.Ext(path) == ".yaml" {
			text = loopback.ReplaceAllStringFunc(text, x.address)
		}
		mkdir(t, x.dir, filepath.Dir(rel))
		writeFile(t, filepath.Join(x.dir, rel), text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// address returns where that is which the example's files have at an address.
func (x *example) address(written string) string {
	x.t.Helper()
	if x.ports[written] == "" {
		x.ports[written] = freePort(x.t)
	}
	return x.ports[written]
}

// relay returns the relay of one of the example's config files, not yet started.
func (x *example) relay(file string) *relay {
	x.t.Helper()
	return &relay{
		t: x.t, name: file, xds: x.address("127.0.0.1:15010"), admin: x.address("127.0.0.1:15014"),
		config: filepath.Join(x.dir, file),
	}
}

// istiodAt returns an istiod, not yet started, with its gRPC port at an address of the
// example's files. It reads the files of its configDir and then the sources.
func (x *example) istiodAt(name, written string, sources ...string) *istiod {
	x.t.Helper()
	i := newIstiod(x.t, name)
	x.move(i, written)
	if len(sources) > 0 {
		mesh := "trustDomain: " + name + ".example\nconfigSources:\n- address: fs://" + i.configDir + "\n"
		for _, s := range sources {
			mesh += "- address: xds://" + s + "\n"
		}
		writeFile(x.t, i.mesh, mesh)
		i.args = append(i.args, "--configDir=") // of a flag that comes twice, the last counts
	}
	return i
}

// move gives an istiod that was not started an address of the example's files.
func (x *example) move(i *istiod, written string) {
	x.t.Helper()
	i.grpc = x.address(written)
	i.args = append(i.args, "--grpcAddr", i.grpc)
}

// give copies one of the example's directories into an istiod's configDir.
func (x *example) give(i *istiod, dir string) {
	x.t.Helper()
	paths, err := filepath.Glob(filepath.Join(x.dir, dir, "*.yaml"))
	if err != nil || len(paths) == 0 {
		x.t.Fatalf("no files in %s: %v", dir, err)
	}
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			x.t.Fatal(err)
		}
		writeFile(x.t, filepath.Join(i.configDir, filepath.Base(p)), string(b))
	}
}

// command runs the relay's command line in the example's directory, and returns what it
// prints, with the addresses as they are written in the files.
func (x *example) command(args ...string) (string, error) {
	x.t.Helper()
	cmd := exec.CommandContext(x.t.Context(), binary(x.t, "RELAY_BIN", "../bin/relay"), args...)
	cmd.Dir = x.dir
	out, err := cmd.CombinedOutput()
	text := string(out)
	for written, free := range x.ports {
		text = strings.ReplaceAll(text, free, written)
	}
	if err != nil {
		return text, fmt.Errorf("relay %s: %w\n%s", strings.Join(args, " "), err, text)
	}
	return text, nil
}

// session is a command in a README with what it prints there.
type session struct {
	args []string
	want string
}

var (
	consoleBlock = regexp.MustCompile("(?s)```console\n(.*?)```")
	age          = regexp.MustCompile(`\b(\d+(ms|[ydhms]))+\b`)
	gap          = regexp.MustCompile(` {2,}`)
	// etcdRevision is that of an object in an etcd, as "relay explain" shows it.
	etcdRevision = regexp.MustCompile(`^(\S+ (?:served|shadowed) \S+ AGE) \d+ `)
)

// sessions returns the relay commands of the example's README.
func (x *example) sessions() []session {
	x.t.Helper()
	b, err := os.ReadFile(filepath.Join(x.dir, "README.md"))
	if err != nil {
		x.t.Fatal(err)
	}
	var all []session
	for _, block := range consoleBlock.FindAllStringSubmatch(string(b), -1) {
		for _, part := range strings.Split("\n"+block[1], "\n$ ")[1:] {
			line, want, _ := strings.Cut(part, "\n")
			if args, ok := strings.CutPrefix(line, "relay "); ok {
				all = append(all, session{args: strings.Fields(args), want: want})
			}
		}
	}
	return all
}

// shows runs the commands of the README that begin with words, and waits until their output
// equals the README's, but for ages and the widths of columns.
func (x *example) shows(t *testing.T, words string) {
	t.Helper()
	all := x.about(words)
	if len(all) == 0 {
		t.Errorf("the README of %s has no relay %s", x.name, words)
	}
	for _, s := range all {
		x.prints(t, s)
	}
}

// showsAt is shows for one of several such commands; the first is number 0.
func (x *example) showsAt(t *testing.T, words string, number int) {
	t.Helper()
	all := x.about(words)
	if number >= len(all) {
		t.Fatalf("the README of %s has relay %s %d times", x.name, words, len(all))
	}
	x.prints(t, all[number])
}

// about returns the sessions of the README whose first words these are.
func (x *example) about(words string) []session {
	x.t.Helper()
	return slices.DeleteFunc(x.sessions(), func(s session) bool {
		return !strings.HasPrefix(strings.Join(s.args, " ")+" ", words+" ")
	})
}

// prints runs a command of the README and waits until it prints the README's output. It repeats a
// command that changes something, if it has to.
func (x *example) prints(t *testing.T, s session) {
	t.Helper()
	var args []string
	for _, a := range s.args {
		args = append(args, strings.Replace(a, "examples/"+x.name+"/", "", 1))
	}
	if n := slices.Index(args, "--hold") + 1; n > 0 {
		args[n] = x.ports[args[n]]
	}
	for n, a := range args {
		if n > 0 && (args[n-1] == "--server" || args[n-1] == "--listener") {
			args[n] = x.address(a)
		}
	}
	switch {
	case slices.Contains(args, "--server"), slices.Contains(args, "--kubeconfig"), args[0] == "validate":
	case args[0] != "get":
		args = append(args, "--admin", x.address("127.0.0.1:15014"))
	default:
		args = append(args, "--server", x.address("127.0.0.1:15010"))
	}
	eventually(t, "relay "+strings.Join(s.args, " ")+" prints what README.md has", func() error {
		out, err := x.command(args...)
		if err != nil {
			return err
		}
		if have, want := plain(out), plain(s.want); !sameLines(have, want) {
			return fmt.Errorf("it prints\n%s\nwant\n%s", have, want)
		}
		return nil
	})
}

// plain returns what is printed without what differs from run to run.
func plain(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		line = gap.ReplaceAllString(strings.TrimRight(line, " \n"), " ")
		lines = append(lines, etcdRevision.ReplaceAllString(age.ReplaceAllString(line, "AGE"), "$1 REVISION "))
	}
	return strings.Trim(strings.Join(lines, "\n"), "\n")
}

// sameLines compares texts by line. In want, a line of … stands for any lines, and … in a
// line for any text.
func sameLines(have, want string) bool {
	have, pattern := "\n"+have+"\n", regexp.QuoteMeta("\n"+want+"\n")
	pattern = strings.ReplaceAll(pattern, "\n…\n", "\n(?s:.*)")
	pattern = strings.ReplaceAll(pattern, "…", ".*")
	return regexp.MustCompile(`\A` + pattern + `\z`).MatchString(have)
}

// has waits until a config of an istiod has a part.
func (i *istiod) has(key, part string) {
	i.t.Helper()
	eventually(i.t, "istiod "+i.name+" has "+part+" in "+key, func() error {
		if c, ok := i.configs()[key]; !ok || !strings.Contains(c, part) {
			return fmt.Errorf("it is %q", c)
		}
		return nil
	})
}

// loses waits until an istiod has a config no more.
func (i *istiod) loses(key string) {
	i.t.Helper()
	eventually(i.t, "istiod "+i.name+" loses "+key, func() error {
		if c, ok := i.configs()[key]; ok {
			return fmt.Errorf("it is %q", c)
		}
		return nil
	})
}

// hasNot fails if an istiod has a key.
func (i *istiod) hasNot(key string) {
	i.t.Helper()
	if c, ok := i.configs()[key]; ok {
		i.t.Errorf("istiod %s has %s: %s", i.name, key, c)
	}
}

// TestExampleConfigsAreValid runs relay validate on every config file of the examples. Kubeconfigs are
// the user's own: it writes the one that the README shows in their place.
func TestExampleConfigsAreValid(t *testing.T) {
	t.Parallel()
	dirs, err := filepath.Glob("../examples/*/relay.yaml")
	if err != nil || len(dirs) != examples-1 { // that of fleet is made by a script
		t.Fatalf("the examples have %d config files: %v", len(dirs), err)
	}
	for _, dir := range dirs {
		x := newExample(t, filepath.Base(filepath.Dir(dir)))
		for _, cluster := range []string{"east", "west", "primary", "dr"} {
			writeFile(t, filepath.Join(x.dir, cluster+".kubeconfig"), "apiVersion: v1\nkind: Config\n"+
				"clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\nusers: [{name: relay, user: {token: t}}]\n"+
				"contexts: [{name: c, context: {cluster: c, user: relay}}]\ncurrent-context: c\n")
		}
		paths, err := filepath.Glob(filepath.Join(x.dir, "relay*.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			out, err := exec.CommandContext(t.Context(), binary(t, "RELAY_BIN", "../bin/relay"), "validate", "-c", path).CombinedOutput()
			if err != nil {
				t.Errorf("%s: %v\n%s", path, err, out)
			}
		}
	}
}

// TestExampleLinksLeadSomewhere checks the relative links of the examples' READMEs.
func TestExampleLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("../examples/*/README.md")
	if err != nil || len(paths) != examples {
		t.Fatalf("the examples have %d READMEs: %v", len(paths), err)
	}
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	for _, p := range append(paths, "../examples/README.md") {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(b), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(p), m[1])); err != nil {
				t.Errorf("%s: the link to %s leads nowhere", p, m[1])
			}
		}
	}
}
