package attacks

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
)

// Places where clusters are found. DIR stands for the directory of the stage.
const (
	secretsOf    = "secrets: {cluster: {kubeconfig: hub/config}, namespace: evil}, upstream: {kubernetes: {}}"
	programs     = ", allowExec: ['DIR/program']"
	credential   = "credential-of-the-relay"
	elsewhere    = ", allowServers: ['*.honest.example']"
	fromLoopback = ", allowServers: [127.0.0.0/8]"
)

// foundClusters are the attacks of who writes Secrets and kubeconfigs.
func foundClusters() []*attack {
	bomb := "apiVersion: v1\nkind: Config\nx: &a " + strings.Repeat("x", 128<<10) + "\ny: [" + strings.Repeat("*a,", 8_000) + "]\n"
	return []*attack{
		{finding: "D2", name: "a Secret with a kubeconfig of 155 KB of aliases", clusters: secretsOf, told: `found.*(alias|anchor|too large)`, run: func(s *stage, n int) {
			for i := range n {
				s.found(fmt.Sprint("c-", i), bomb)
			}
			strikeHub(s, n)
		}},
		{finding: "D2", name: "an upstream's kubeconfig that becomes one of aliases", seldom: true, told: `west-0.*(alias|anchor|too large)`, api: path("/never", answer()), run: func(s *stage, n int) {
			for i := range n {
				s.write(fmt.Sprintf("west-%d/config", i), bomb)
			}
		}},

		{finding: "D5", name: "a kubeconfig that runs a program of the config for a server of the attacker", clusters: secretsOf + programs, once: true, told: `allowServers`, run: stealCredential},
		{finding: "D5", name: "the same, to servers that look like those of the config", clusters: secretsOf + programs + elsewhere, once: true, told: `allowServers`, run: stealCredential},
		{finding: "D5", name: "arguments and variables for a program of the config", clusters: secretsOf + programs + fromLoopback, once: true, told: `only the config does so`, run: steerProgram},

		{finding: "D10", name: "kubeconfigs that name services of this host", clusters: secretsOf, once: true, told: `loopback`, run: dialLoopback("")},
		{finding: "D10", name: "a server name that is a line of another protocol", clusters: secretsOf + fromLoopback, once: true, told: `tls-server-name`, run: dialLoopback(line)},
		{finding: "D10", name: "a proxy that is a service of this host", clusters: secretsOf + elsewhere, once: true, told: `loopback|allowServers`, run: dialProxy},

		{finding: "D12", name: "Secrets of five million empty kubeconfigs", clusters: secretsOf, once: true, told: `more than \d+ (keys|values|KiB)`, run: strikeHub, hub: objects("secrets", 8, func(i int) string {
			return named("evil", fmt.Sprint("s-", i), `,"resourceVersion":"1"`, `,"data":{"a":""`+keys(0, 650_000, `,"%06d":""`)+`}`)
		})},
		{finding: "D12", name: "5,000 Secrets of 1,000 empty kubeconfigs", clusters: secretsOf, once: true, told: `more than \d+ objects or keys`, run: strikeHub, hub: objects("secrets", 5_000, func(i int) string {
			return named("evil", fmt.Sprint("s-", i), `,"resourceVersion":"1"`, `,"data":{"a":""`+keys(1000*i, 1_000, `,"%07d":""`)+`}`)
		})},
	}
}

// prepareFound makes the hub and the program that elements of clusters name.
func (s *stage) prepareFound(a *attack) string {
	s.hub = s.hostile("hub", a.hub)
	s.hub.Define("", "Secret", "secrets", "v1")
	program := s.write("program", "#!/bin/sh\n{ echo \"$@\"; env; } >>"+s.dir+"/seen\n"+
		`echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"`+credential+`"}}'`+"\n")
	if err := os.Chmod(program, 0o700); err != nil { // it is a program
		s.Fatal(err)
	}
	return strings.ReplaceAll(a.clusters, "DIR", s.dir)
}

// found gives the hub a Secret with a kubeconfig.
func (s *stage) found(id, kubeconfig string) {
	s.hub.Put("/secrets", map[string]any{
		"metadata": map[string]any{"namespace": "evil", "name": id}, "data": map[string]any{id: base64.StdEncoding.EncodeToString([]byte(kubeconfig))},
	})
}

// kubeconfig returns one of a cluster and a user.
func kubeconfig(cluster, user map[string]any) string {
	type m = map[string]any
	text, err := json.Marshal(m{
		"apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": []m{{"name": "c", "cluster": cluster}},
		"users": []m{{"name": "c", "user": user}}, "contexts": []m{{"name": "c", "context": m{"cluster": "c", "user": "c"}}},
	})
	if err != nil {
		panic(err)
	}
	return string(text)
}

// thief starts an API server of the attacker. It returns what it was asked with.
func (s *stage) thief() (server *apiServer, authority string, got func() []string) {
	var mu sync.Mutex
	var all []string
	server = s.apiServer("thief")
	server.Set(func() {
		server.Fault = func(_ http.ResponseWriter, r *http.Request) bool {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, r.Header.Get("Authorization"))
			return false
		}
	})
	authority = base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.web.Certificate().Raw}))
	return server, authority, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return all
	}
}

// exec is a user whose credential the program gives.
func (s *stage) exec(more map[string]any) map[string]any {
	e := map[string]any{"apiVersion": "client.authentication.k8s.io/v1", "command": s.dir + "/program", "interactiveMode": "Never"}
	for k, v := range more {
		e[k] = v
	}
	return map[string]any{"exec": e}
}

// stealCredential has the hub tell of kubeconfigs that lead to the attacker, and looks that nothing arrives there.
func stealCredential(s *stage, n int) {
	server, authority, got := s.thief()
	_, port, _ := net.SplitHostPort(server.web.Listener.Addr().String())
	urls := []string{
		"https://127.0.0.1:" + port, "https://127.0.0.1:" + port + "/a.honest.example", "https://127.0.0.1:" + port + "/?a.honest.example", "https://127.0.0.1:" + port + "#a.honest.example",
		"https://a.honest.example@127.0.0.1:" + port, "https://localhost:" + port, "https://[::ffff:127.0.0.1]:" + port, "https://127.0.0.1:" + port + "/\\@a.honest.example",
	}
	for i, url := range urls {
		s.found(fmt.Sprint("c-", i), kubeconfig(map[string]any{"server": url, "certificate-authority-data": authority, "tls-server-name": "example.com"}, s.exec(nil)))
	}
	strikeHub(s, n)
	s.refusedOr(len(urls), func() bool { return len(got()) > 0 })
	if all := got(); len(all) > 0 {
		s.Errorf("the attacker's server is asked %d times, first with %q", len(all), all[0])
	}
	if text, err := os.ReadFile(filepath.Join(s.dir, "seen")); err == nil {
		s.Errorf("the program is run: %.300s", text)
	}
}

// refusedOr waits until the relay tells why it does not follow each of the clusters c-0 to c-(n-1), or the attack has
// succeeded, and then for what follows of it. What it tells of other clusters does not count.
func (s *stage) refusedOr(n int, succeeded func() bool) {
	why := regexp.MustCompile(`(?:cluster|upstream)=(c-\d+) .*(?:reason|err)=`)
	s.await(fmt.Sprintf("%d clusters to be refused", n), func() bool {
		refused := map[string]bool{}
		for _, m := range why.FindAllStringSubmatch(s.allTold(), -1) {
			refused[m[1]] = true
		}
		for i := range n {
			if !refused[fmt.Sprint("c-", i)] {
				return succeeded()
			}
		}
		return true
	})
	s.settle()
}

// steerProgram has the hub tell of kubeconfigs that add something to a program that the config allows.
func steerProgram(s *stage, n int) {
	server, authority, _ := s.thief()
	cluster := map[string]any{"server": server.web.URL, "certificate-authority-data": authority, "extensions": []any{
		map[string]any{"name": "client.authentication.k8s.io/exec", "extension": map[string]any{"evil": "pwned"}},
	}}
	for i, more := range []map[string]any{
		{"args": []string{"pwned"}}, {"env": []any{map[string]any{"name": "LD_PRELOAD", "value": "/pwned.so"}}}, {"provideClusterInfo": true},
	} {
		s.found(fmt.Sprint("c-", i), kubeconfig(cluster, s.exec(more)))
	}
	strikeHub(s, n)
	seen := func() string {
		text, _ := os.ReadFile(filepath.Join(s.dir, "seen")) // it may not have run
		return string(text)
	}
	s.refusedOr(2, func() bool { return strings.Contains(seen(), "pwned") })
	s.await("the program to run without what the attacker wrote", func() bool { return seen() != "" })
	if text := seen(); strings.Contains(text, "pwned") {
		s.Errorf("the program is run with what the attacker wrote: %s", text)
	}
}

// trap is a plaintext service on loopback, of the attacks' own.
type trap struct {
	net.Listener
	mu  sync.Mutex
	got []string
}

func (s *stage) trap(network, address string) *trap {
	lis, err := net.Listen(network, address)
	if err != nil {
		s.Logf("no trap on %s: %v", address, err)
		return nil
	}
	t := &trap{Listener: lis}
	s.Cleanup(func() { lis.Close() })
	go func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			b := make([]byte, 4096)
			n, _ := conn.Read(b)
			conn.Close()
			t.mu.Lock()
			t.got = append(t.got, string(b[:n]))
			t.mu.Unlock()
		}
	}()
	return t
}

// sprung returns what has arrived.
func (t *trap) sprung() []string {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.got
}

// untouched looks that nothing has arrived in traps.
func (s *stage) untouched(traps ...*trap) {
	for _, t := range traps {
		if all := t.sprung(); len(all) > 0 {
			s.Errorf("the service at %s is connected to %d times, and sent %.100q first, the line %v", t.Addr(), len(all), all[0], strings.Contains(strings.Join(all, ""), line))
		}
	}
}

// line is what a name of a server would tell a service.
const line = "x\r\nSET pwned 1\r\n"

// dialLoopback makes an attack of a hub that tells of kubeconfigs of services on this host, with a name of the server.
// It looks that nothing arrives there.
func dialLoopback(name string) func(*stage, int) {
	return func(s *stage, n int) {
		four := s.trap("tcp4", "127.0.0.1:0")
		_, port, _ := net.SplitHostPort(four.Addr().String())
		six := s.trap("tcp6", "[::1]:"+port)
		hosts := []string{"127.0.0.1", "127.0.0.9", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "[::]"}
		for i, host := range hosts {
			cluster := map[string]any{"server": "https://" + host + ":" + port}
			if name != "" {
				cluster["tls-server-name"] = name
			}
			s.found(fmt.Sprint("c-", i), kubeconfig(cluster, map[string]any{"token": "t"}))
		}
		strikeHub(s, n)
		s.refusedOr(len(hosts), func() bool { return len(four.sprung())+len(six.sprung()) > 0 })
		s.untouched(four, six)
	}
}

// dialProxy has the hub tell of kubeconfigs whose proxy is a service on this host.
func dialProxy(s *stage, n int) {
	service := s.trap("tcp4", "127.0.0.1:0")
	for i, scheme := range []string{"http", "https", "socks5"} {
		s.found(fmt.Sprint("c-", i), kubeconfig(map[string]any{"server": "https://a.honest.example", "proxy-url": scheme + "://" + service.Addr().String()}, map[string]any{"token": "t"}))
	}
	strikeHub(s, n)
	s.refusedOr(3, func() bool { return len(service.sprung()) > 0 })
	s.untouched(service)
}
