package relay

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"meshrelay/admin"
	"meshrelay/audit"
	"meshrelay/config"
	"meshrelay/internal/testing/await"
	"meshrelay/upstreams/intake"
)

// TestTheAuditLogTellsTheLifeOfARelay from its start to its end, whatever the log level: a client, a reload by SIGHUP,
// a mistake in the config file and an order. While the file can not be written, the relay serves and tells it.
func TestTheAuditLogTellsTheLifeOfARelay(t *testing.T) {
	dir := t.TempDir()
	logs, file, path := filepath.Join(dir, "log"), filepath.Join(dir, "log", "audit.log"), filepath.Join(dir, "relay.yaml")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(dir, "a.yaml"), "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: e, namespace: shop}\nspec: {hosts: [a.example]}\n")
	text := "node: {id: relay-1}\nlog: {level: error}\naudit: {file: log/audit.log}\nadmin: {address: \"127.0.0.1:0\", socket: run/admin.sock}\n" +
		"downstream: {listeners: [{address: \"127.0.0.1:0\", plaintext: true}]}\nupstreams:\n- {name: east, file: {path: a.yaml}}\n"
	write(path, text)
	watcher := config.NewWatcher(path, Sources()...)
	cfg, err := watcher.Load()
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(Options{Config: cfg, Watcher: watcher, Complete: func(*config.Config) {}, Logger: slog.New(slog.DiscardHandler), LogLevel: new(slog.LevelVar)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	stop := func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		ended <- nil
	}
	defer stop()

	lines := func() (all []audit.Line) {
		b, _ := os.ReadFile(file) // until it is there, it has no lines
		for raw := range bytes.Lines(b) {
			line := audit.Line{}
			if err := json.Unmarshal(raw, &line); err != nil {
				t.Fatalf("%v: %s", err, raw)
			}
			all = append(all, line)
		}
		return all
	}
	until := func(what string, is func() bool) {
		t.Helper()
		await.Until(t, what, is, func() any { return lines() })
	}
	of := func(event audit.Event) (found []audit.Line) {
		return slices.DeleteFunc(lines(), func(line audit.Line) bool { return line.Event != event })
	}

	addrs, err := r.server.Addrs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(addrs[0].String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	connect := func() {
		t.Helper()
		stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context())
		if err == nil {
			err = stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "tester"}, TypeUrl: "networking.istio.io/v1/ServiceEntry"})
		}
		if err == nil {
			_, err = stream.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	connect()
	until("the client is told", func() bool { return len(of(audit.ClientConnected)) == 1 })
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	until("the reload is told", func() bool { return len(of(audit.ConfigLoaded)) == 1 })
	write(path, text+"nonsense: true\n")
	until("the mistake is told", func() bool { return len(of(audit.ConfigRefused)) == 1 })

	client := admin.Client{Socket: filepath.Join(dir, "run", "admin.sock"), HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	if _, err := client.Order(t.Context(), "east", "freeze", intake.Order{Reason: "upgrade"}); err != nil {
		t.Fatal(err)
	}
	until("the order is told", func() bool { return len(of(audit.OperatorActed)) == 1 })

	if err := os.Rename(logs, logs+".gone"); err != nil {
		t.Fatal(err)
	}
	write(logs, "no directory")
	connect()
	noted := func() string { return strings.Join(r.notes(), "\n") }
	until("/ready tells of the lost line", func() bool { return strings.Contains(noted(), "audit log: not written since") })
	if err := os.Remove(logs); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(logs+".gone", logs); err != nil {
		t.Fatal(err)
	}
	until("the lost line is told", func() bool { return len(of(audit.LinesLost)) == 1 })
	until("/ready tells it no more", func() bool { return noted() == "" })
	stop()

	var got []string
	for _, line := range lines() {
		if line.Relay != "relay-1" {
			t.Errorf("%+v", line)
		}
		if line.Event != audit.ClientEnded { // those come in any order
			got = append(got, fmt.Sprintf("%s %s %s %s %d", line.Event, line.NodeID, line.Action, line.Reason, line.Count))
		}
	}
	want := []string{
		"started    0", "client-connected tester   0", "config-loaded  reload SIGHUP 0", "config-refused  reload  0",
		"operator-acted  freeze upgrade 0", "lines-lost    1", "ended    0",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if all := lines(); len(of(audit.ClientEnded)) != 2 || all[len(all)-1].Event != audit.Ended {
		t.Errorf("the end: %+v", all)
	}
	if line := of(audit.OperatorActed)[0]; line.UID != os.Getuid() || line.PID != os.Getpid() || !strings.HasPrefix(line.Before, "not frozen") || !strings.HasPrefix(line.After, "frozen") {
		t.Errorf("%+v", line)
	}
	if line := of(audit.ConfigRefused)[0]; !strings.Contains(line.Error, "nonsense") || !strings.HasPrefix(line.Before, "hash ") {
		t.Errorf("%+v", line)
	}
}
