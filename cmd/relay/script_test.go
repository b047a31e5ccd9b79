package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"meshrelay/admin"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"relay": main})
}

// TestScripts runs the command as users do. Each script has the environment variables
// PORT1 to PORT9, free ports of 127.0.0.1, and the commands waitready, waitdegraded,
// waitmatch, waitclient, expandenv and sigterm.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("HOME", env.WorkDir)
			root, err := filepath.Abs("../..")
			if err != nil {
				return err
			}
			env.Setenv("ROOT", root)
			// The race detector would wait for a second at the end of every command.
			env.Setenv("GORACE", "atexit_sleep_ms=50")
			for i, port := range freePorts(t, 9) {
				env.Setenv(fmt.Sprintf("PORT%d", i+1), fmt.Sprint(port))
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"waitready":    waitReady,
			"waitdegraded": waitDegraded,
			"waitmatch":    waitMatch,
			"waitclient":   waitClient,
			"expandenv":    expandEnv,
			"sigterm":      sigterm,
		},
	})
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

// eventually waits until ok returns true.
func eventually(ts *testscript.TestScript, what string, ok func(context.Context) bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok(ctx) {
		select {
		case <-ctx.Done():
			ts.Fatalf("waited 30 s for %s", what)
		case <-tick.C:
		}
	}
}

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
	eventually(ts, "readiness of "+args[0], func(ctx context.Context) bool {
		r, err := admin.Client{Address: args[0]}.Ready(ctx)
		return err == nil && ok(r)
	})
}

// waitMatch REGEXP FILE waits until the file has a match.
func waitMatch(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: waitmatch REGEXP FILE")
	}
	re, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	eventually(ts, args[0]+" in "+args[1], func(context.Context) bool {
		b, err := os.ReadFile(ts.MkAbs(args[1]))
		return err == nil && re.Match(b)
	})
}

// waitClient ADMIN FILE waits until a client with a view is connected, and writes its connection to the file.
func waitClient(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: waitclient ADMIN FILE")
	}
	eventually(ts, "a client of "+args[0], func(ctx context.Context) bool {
		all, err := admin.Client{Address: args[0]}.Clients(ctx)
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
