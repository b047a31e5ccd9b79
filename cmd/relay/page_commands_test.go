package main

import (
	"bytes"
	"fmt"
	"html"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"meshrelay/internal/testing/await"
)

// commandsOf returns the commands that a page shows, as a user copies them.
func commandsOf(t *testing.T, address string) (commands []string) {
	t.Helper()
	resp, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v %v", address, resp.Status, err)
	}
	for _, m := range regexp.MustCompile(`(?:<span class="command"><code>|all of it: )(relay [^<\n]*)`).FindAllStringSubmatch(string(page), -1) {
		commands = append(commands, html.UnescapeString(m[1]))
	}
	links := regexp.MustCompile(`href="/ui(/events/[0-9]+)"`).FindAllStringSubmatch(string(page), -1)
	for _, link := range links {
		if !strings.Contains(address, "/events/") {
			commands = append(commands, commandsOf(t, address[:strings.Index(address, "/ui/")+3]+link[1])...)
		}
	}
	slices.Sort(commands)
	return slices.Compact(commands)
}

// words splits a command into arguments as a shell does.
func words(t *testing.T, command string) []string {
	t.Helper()
	out, err := exec.Command("sh", "-c", `relay() { printf '%s\n' "$@"; }; `+command).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v %s", command, err, out)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}

func TestCommandsOfThePageWorkAsPrinted(t *testing.T) {
	ports := freePorts(t, 2)
	t.Setenv("RELAY_ADMIN", "") // the page names the addresses
	t.Setenv("RELAY_SERVER", "")
	admin := fmt.Sprintf("127.0.0.1:%d", ports[0])
	dir := filepath.Join(t.TempDir(), "with space")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	good := "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: db, namespace: shop}\nspec: {hosts: [db.example], resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}]}\n"
	bad := "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: bad, namespace: shop}\nspec: {hosts: 7}\n"
	large := "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: other, namespace: shop}\n---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: large, namespace: shop}\nspec: {resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}], hosts: [" + strings.Repeat("a.example, ", 4000) + "b.example]}\n"
	if err := os.WriteFile(filepath.Join(dir, "all.yaml"), []byte(good+bad+large), 0o600); err != nil {
		t.Fatal(err)
	}
	serveConfig(t, fmt.Sprintf(`admin: {address: "127.0.0.1:%d"}
state: {dir: %q}
downstream: {listeners: [{address: "127.0.0.1:%d", plaintext: true}]}
upstreams: [{name: east, file: {path: %q}}]
`, ports[0], filepath.Join(t.TempDir(), "state"), ports[1], filepath.Join(dir, "all.yaml")))
	run := func(args ...string) (string, int) {
		var out bytes.Buffer
		code := execute(args, &out, &out)
		return out.String(), code
	}
	if text, code := run("wait", "--for", "ready", "--timeout", "2m", "--admin", admin); code != 0 {
		t.Fatal(text)
	}
	await.Until(t, "the first revision is written", func() bool {
		text, code := run("history", "east", "--admin", admin)
		return code == 0 && strings.Contains(text, "shop/db")
	})
	ran, histories := 0, 0
	for _, path := range []string{"/", "/upstreams", "/upstreams/east", "/resources", "/resource?kind=se&namespace=shop&name=db", "/resource?kind=se&namespace=shop&name=large", "/services?q=db", "/service?host=db.example&port=80", "/clients", "/conflicts", "/events", "/events?type=changed&upstream=east&q=db&window=1h",
		"/resources?kind=networking.istio.io%2FServiceEntry&namespace=shop&q=D"} {
		for _, command := range commandsOf(t, "http://"+admin+"/ui"+path) {
			args := words(t, command)
			for i, arg := range args { // placeholders that a user fills in
				args[i] = map[string]string{"UPSTREAM": "east", "REVISION": "1"}[arg]
				if args[i] == "" {
					args[i] = arg
				}
			}
			text, code := run(args...)
			ran++
			if strings.HasPrefix(path, "/events") && strings.HasPrefix(command, "relay history east") {
				histories++
			}
			if code != 0 && !strings.Contains(text, "not possible: ") { // nothing is held or frozen
				t.Errorf("%s shows %q: %s", path, command, text)
			}
		}
	}
	if histories == 0 {
		t.Error("no event names the history of its upstream")
	}
	if ran < 15 {
		t.Errorf("only %d commands were run", ran)
	}
}
