package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"meshrelay/admin"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakekube"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"relay": main})
}

// TestScripts runs the command as users do. Each script has the environment variables
// PORT1 to PORT9, free ports of 127.0.0.1, and the commands run, unmet, waitrelay, waitready,
// waitdegraded, waitmatch, waitclient, expandenv, hub and sigterm.
func TestScripts(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join(root, "cmd/relay/testdata/script"),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("ROOT", root)
			// The race detector would wait for a second at the end of every command.
			env.Setenv("GORACE", "atexit_sleep_ms=50")
			for i, port := range freePorts(t, 9) {
				env.Setenv(fmt.Sprintf("PORT%d", i+1), fmt.Sprint(port))
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"run":          run,
			"waitrelay":    waitRelay,
			"waitready":    waitReady,
			"waitdegraded": waitDegraded,
			"waitmatch":    waitMatch,
			"waitclient":   waitClient,
			"expandenv":    expandEnv,
			"sigterm":      sigterm,
			"hub":          func(ts *testscript.TestScript, _ bool, args []string) { serveHub(t, ts, args[0]) },
		},
	})
}

// serveHub serves the kubeconfigs in a directory as Secrets, each under the name of its file. The kubeconfig of the hub
// is beside the directory.
func serveHub(t *testing.T, ts *testscript.TestScript, dir string) {
	dir = ts.MkAbs(dir)
	hub := fakekube.New()
	hub.Fault = func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/secrets") {
			return false
		}
		files, err := os.ReadDir(dir)
		items := []any{}
		for _, f := range files {
			text, failed := os.ReadFile(filepath.Join(dir, f.Name()))
			err = errors.Join(err, failed)
			items = append(items, map[string]any{"metadata": map[string]any{"namespace": "istio-system", "name": f.Name()}, "data": map[string]any{f.Name(): text}})
		}
		if err = errors.Join(err, json.NewEncoder(w).Encode(map[string]any{"metadata": map[string]any{"resourceVersion": "1"}, "items": items})); err != nil {
			t.Error(err)
		}
		return true
	}
	fakekube.WriteKubeconfig(t, dir+".kubeconfig", hub.Start(t), "t")
}

// inScript holds the directory and the environment of the process, which are those of one script at a time.
var inScript sync.Mutex

// runHere runs a command of the relay in this process, as "exec relay" does in one of its own, which takes ten times
// the CPU. Commands that end by a signal need their own.
func runHere(ts *testscript.TestScript, stdout, stderr io.Writer, args ...string) (code int) {
	inScript.Lock()
	defer inScript.Unlock()
	back, err := os.Getwd()
	ts.Check(err)
	defer func() { ts.Check(os.Chdir(back)) }()
	ts.Check(os.Chdir(ts.MkAbs(".")))
	for _, name := range []string{"HOME", "RELAY_ADMIN", "RELAY_SERVER", "RELAY_SOCKET", "RELAY_CONFIG"} {
		defer os.Setenv(name, os.Getenv(name)) // it was valid
		ts.Check(os.Setenv(name, ts.Getenv(name)))
	}
	return execute(args, stdout, stderr)
}

// run relay ARG... runs a command of the relay that ends by itself.
func run(ts *testscript.TestScript, neg bool, args []string) {
	if args[0] != "relay" {
		ts.Fatalf("usage: run relay ARG...")
	}
	if code := runHere(ts, ts.Stdout(), ts.Stderr(), args[1:]...); (code != 0) != neg {
		ts.Fatalf("exit code %d", code)
	}
}

// waitRelay REGEXP ARG... runs a command of the relay until its stdout has a match.
func waitRelay(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: waitrelay REGEXP ARG...")
	}
	re, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	var out, errs strings.Builder
	await.Until(ts, args[0]+" in the output", func() bool {
		out.Reset()
		errs.Reset()
		return runHere(ts, &out, &errs, args[1:]...) == 0 && re.MatchString(out.String())
	}, func() any { return out.String() + errs.String() })
}

// freePorts returns free ports. They are below the range from which the system assigns ports, so that no other process
// gets them by chance.
func freePorts(t *testing.T, n int) (ports []int) {
	t.Helper()
	for range 1000 {
		port := 18000 + rand.IntN(14000)
		if _, taken := given.LoadOrStore(port, true); taken {
			continue
		}
		lis, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		lis.Close()
		if ports = append(ports, port); len(ports) == n {
			return ports
		}
	}
	t.Fatal("no free ports")
	return nil
}

// given are the ports that freePorts has returned or tried. Other tests may not listen on theirs yet.
var given sync.Map

// waitReady ADMIN waits until the relay with that admin address is ready and not degraded.
func waitReady(ts *testscript.TestScript, neg bool, args []string) {
	waitReadiness(ts, neg, args, func(r admin.Readiness) bool { return r.Ready && len(r.Reasons) == 0 })
}

// waitDegraded ADMIN waits until the relay is ready and degraded.
func waitDegraded(ts *testscript.TestScript, neg bool, args []string) {
	waitReadiness(ts, neg, args, func(r admin.Readiness) bool { return r.Ready && len(r.Reasons) > 0 })
}

func waitReadiness(ts *testscript.TestScript, neg bool, args []string, ok func(admin.Readiness) bool) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: waitready|waitdegraded ADMIN")
	}
	var seen any
	await.Until(ts, "readiness of "+args[0], func() bool {
		r, err := admin.Client{Address: args[0]}.Ready(context.Background())
		seen = fmt.Sprint(r, err)
		return err == nil && ok(r)
	}, func() any { return seen })
}

// waitMatch REGEXP FILE waits until the file has a match.
func waitMatch(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: waitmatch REGEXP FILE")
	}
	re, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	var b []byte
	await.Until(ts, args[0]+" in "+args[1], func() bool {
		b, err = os.ReadFile(ts.MkAbs(args[1]))
		return err == nil && re.Match(b)
	}, func() any { return string(b) })
}

// waitClient ADMIN FILE waits until a client with a view is connected, and writes its connection to the file.
func waitClient(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: waitclient ADMIN FILE")
	}
	await.Until(ts, "a client of "+args[0], func() bool {
		all, err := admin.Client{Address: args[0]}.Clients(context.Background())
		if err != nil || len(all) == 0 || all[0].View == "" {
			return false
		}
		ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(all[0].Connection), 0o600))
		return true
	})
}

// expandEnv FILE... replaces ${NAME} in files by the script's environment.
func expandEnv(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: expandenv FILE...")
	}
	for _, f := range args {
		b, err := os.ReadFile(ts.MkAbs(f))
		ts.Check(err)
		ts.Check(os.WriteFile(ts.MkAbs(f), []byte(os.Expand(string(b), ts.Getenv)), 0o600))
	}
}

// sigterm ARG sends SIGTERM to the background commands that have that argument.
func sigterm(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: sigterm ARG")
	}
	sent := false
	for _, cmd := range ts.BackgroundCmds() {
		if slices.Contains(cmd.Args, args[0]) {
			ts.Check(cmd.Process.Signal(syscall.SIGTERM))
			sent = true
		}
	}
	if !sent {
		ts.Fatalf("no command in the background has the argument %s", args[0])
	}
}
