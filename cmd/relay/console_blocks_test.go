package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"meshrelay/internal/testing/await"
)

// consoleBlock is a block of commands with what they print, which a test runs.
var consoleBlock = regexp.MustCompile("(?ms)^```console\n(.*?)^```$")

// sample is a command of a page and what it prints there.
type sample struct{ command, want string }

// samplesOf returns the commands of the console blocks of a page, in order.
func samplesOf(page string) (all []sample) {
	for _, block := range consoleBlock.FindAllStringSubmatch(page, -1) {
		for _, part := range strings.Split("\n"+block[1], "\n$ ")[1:] {
			command, want, _ := strings.Cut(part, "\n")
			all = append(all, sample{command, want})
		}
	}
	return all
}

// shell is a bash that runs commands one after the other.
type shell struct {
	in  io.Writer
	out *bufio.Scanner
}

// newShell starts a shell in a directory, until the test ends. Commands in the background end with it.
func newShell(t *testing.T, dir string, env ...string) *shell {
	t.Helper()
	cmd := exec.Command("bash", "--noprofile", "--norc")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) // all may have ended
		_ = cmd.Wait()                                      // with the code of the last command
	})
	return &shell{in, bufio.NewScanner(out)}
}

// run runs a command and returns what it prints.
func (s *shell) run(command string) (string, error) {
	const end = "@end of the command@"
	if _, err := fmt.Fprintf(s.in, "%s\necho %s\n", command, end); err != nil {
		return "", err
	}
	var printed strings.Builder
	for s.out.Scan() {
		before, ends := strings.CutSuffix(s.out.Text(), end)
		printed.WriteString(before)
		if ends {
			return printed.String(), nil
		}
		printed.WriteString("\n")
	}
	return printed.String(), io.ErrUnexpectedEOF
}

var (
	anyAge  = regexp.MustCompile(`\b(\d+(\.\d+)?(ms|[ydhms]))+\b`)
	anyTime = regexp.MustCompile(`\b\d{4}-\d\d-\d\dT[\d:]+Z`)
	spaces  = regexp.MustCompile(` {2,}`)
)

// equalised returns what is printed without ages, times and the widths of columns.
func equalised(text string) string {
	text = anyAge.ReplaceAllString(anyTime.ReplaceAllString(text, "TIME"), "AGE")
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, spaces.ReplaceAllString(strings.TrimRight(line, " \n"), "  "))
	}
	return strings.Trim(strings.Join(lines, "\n"), "\n")
}

// isPrinted reports whether a text is what a page shows: there, a line of … stands for any lines, and … in a line for
// any text.
func isPrinted(text, shown string) bool {
	pattern := "\n" + regexp.QuoteMeta(equalised(shown)) + "\n"
	pattern = strings.ReplaceAll(pattern, "\n…\n", "\n(?s:.*\n)?")
	pattern = strings.ReplaceAll(pattern, "…", ".*")
	return regexp.MustCompile(`\A` + pattern + `\z`).MatchString("\n" + equalised(text) + "\n")
}

// TestTheTutorialPrintsWhatItShows runs its commands in a copy of the samples with free ports. It waits until each
// command of the relay prints what the page shows.
func TestTheTutorialPrintsWhatItShows(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "samples"), os.DirFS("../../samples")); err != nil {
		t.Fatal(err)
	}
	var there, back []string
	for i, port := range freePorts(t, 6) {
		written := []string{"25110", "25114", "25210", "25214", "25010", "25014"}[i]
		there = append(there, "127.0.0.1:"+written, fmt.Sprint("127.0.0.1:", port))
		back = append(back, fmt.Sprint("127.0.0.1:", port), "127.0.0.1:"+written)
	}
	free, shown := strings.NewReplacer(there...), strings.NewReplacer(back...)
	sh := newShell(t, dir, "TMPDIR="+t.TempDir(), "GORACE=atexit_sleep_ms=50", "RELAY_SOCKET=", "RELAY_CONFIG=")
	all := samplesOf(fileText(t, "../../docs/tutorial.md"))
	if len(all) < 30 {
		t.Fatalf("%d commands", len(all))
	}
	for _, c := range all {
		var text string
		await.Until(t, fmt.Sprintf("$ %s prints\n%s", c.command, c.want), func() bool {
			printed, err := sh.run(free.Replace(c.command))
			if strings.HasPrefix(c.command, "sed ") { // then the ports of the page are those of the test
				for i := 0; i < len(there) && err == nil; i += 2 {
					_, err = sh.run(fmt.Sprintf("sed -i s/%s/%s/ *.yaml", there[i], there[i+1]))
				}
			}
			if text = shown.Replace(printed); err != nil {
				t.Fatalf("%s: %v\n%s", c.command, err, text)
			}
			is := isPrinted(text, c.want)
			if !is && (!strings.HasPrefix(c.command, "relay ") || strings.HasPrefix(c.command, "relay serve")) {
				t.Fatalf("$ %s\nprints\n%s\nwant\n%s", c.command, text, c.want)
			}
			return is
		}, func() any { return text })
	}
}

// TestConflictsInFederationAreAsPrinted runs the relay that federation.md shows the conflicts of.
func TestConflictsInFederationAreAsPrinted(t *testing.T) {
	all := samplesOf(fileText(t, "../../docs/federation.md"))
	if len(all) != 1 || all[0].command != "relay conflicts" {
		t.Fatalf("federation.md has other commands: %q", all)
	}
	dir := t.TempDir()
	entry := "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: %s, namespace: %s}\n" +
		"spec: {hosts: [db.example], resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}]}\n---\n"
	for name, text := range map[string]string{
		"east.yaml": fmt.Sprintf(entry, "db", "shop"), "west.yaml": fmt.Sprintf(entry, "db", "shop") + fmt.Sprintf(entry, "db-copy", "bank"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := runRelay(t, fmt.Sprintf("upstreams: [{name: east, file: {path: %[1]s/east.yaml}}, {name: west, file: {path: %[1]s/west.yaml}}]\n", dir))
	sh := newShell(t, dir, "RELAY_ADMIN="+r.admin)
	var text string
	await.Until(t, "relay conflicts prints\n"+all[0].want, func() bool {
		text, err := sh.run(all[0].command)
		return err == nil && isPrinted(text, all[0].want)
	}, func() any { return text })
}

// ranPages are the pages whose console blocks the tests above run.
var ranPages = []string{"docs/federation.md", "docs/tutorial.md"}

// TestEachConsoleBlockIsRunOrForACluster: those of an example by its end-to-end test, which names the commands that it
// runs.
func TestEachConsoleBlockIsRunOrForACluster(t *testing.T) {
	fence := regexp.MustCompile("(?m)^( *)```(console.*)$")
	n := 0
	for path, page := range markdown(t) {
		for _, m := range fence.FindAllStringSubmatch(page, -1) {
			n++
			if kind := m[2]; m[1] != "" || kind != "console" && kind != "console cluster" {
				t.Errorf("%s has the block %q: want \"console\" or \"console cluster\" at the beginning of the line", path, m[0])
			}
		}
		if all := samplesOf(page); len(all) > 0 && !slices.Contains(ranPages, path) {
			name, is := strings.CutPrefix(filepath.ToSlash(filepath.Dir(path)), "examples/")
			if !is {
				t.Errorf("no test runs the console blocks of %s: add it to ranPages, with a test, or mark them \"console cluster\"", path)
				continue
			}
			test := fileText(t, "../../e2e/examples_"+strings.ReplaceAll(name, "-", "_")+"_test.go")
			for _, c := range all {
				if !isRun(test, c.command) {
					t.Errorf("%s: no test runs %q", path, c.command)
				}
			}
		}
	}
	if n < 40 {
		t.Errorf("%d blocks found", n)
	}
}

// isRun reports whether a test names the first words of a command of the relay.
func isRun(test, command string) bool {
	command, is := strings.CutPrefix(command, "relay ")
	for words := command; is && words != ""; words = words[:max(0, strings.LastIndex(words, " "))] {
		if strings.Contains(test, `"`+words+`"`) {
			return true
		}
	}
	return false
}
