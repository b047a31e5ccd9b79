package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/anypb"
	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/internal/testing/fakexds"
)

// lockedBuffer is output of a command that runs.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// background runs a command until stop is called, which returns its error, or the test ends.
func background(t *testing.T, args ...string) (out *lockedBuffer, stop func() error) {
	t.Helper()
	out = &lockedBuffer{}
	return out, backgroundInto(t, out, out, args...)
}

// backgroundInto is background with places for output and errors.
func backgroundInto(t *testing.T, out, errs io.Writer, args ...string) (stop func() error) {
	t.Helper()
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errs)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- root.ExecuteContext(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() { _ = stop() })
	return stop
}

// recorded records a server that has, one after the other, these states, and returns the file and
// what the command printed.
func recorded(t *testing.T, source *fakexds.Server, section string, states [][]fakexds.Resource, flags ...string) (file, printed string) {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "relay.yaml")
	ports := freePorts(t, 2)
	text := fmt.Sprintf("admin: {address: \"127.0.0.1:%d\"}\ndownstream: {listeners: [{address: \"127.0.0.1:%d\", plaintext: true}]}\nupstreams: [{name: east, xds: {addresses: [%q], plaintext: true%s}}]\n", ports[0], ports[1], source.Addr, section)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(dir, "east.rec")
	source.Set(entryType, states[0]...)
	before := len(source.Requests())
	out, stop := background(t, append([]string{"record", "-c", config, "--upstream", "east", "-o", file}, flags...)...)
	acks := func() (n int) {
		for _, r := range source.Requests()[before:] {
			if r.TypeURL == entryType && r.Nonce != "" {
				n++
			}
		}
		return n
	}
	for i, state := range states {
		if i > 0 {
			source.Set(entryType, state...)
			source.Push(entryType)
		}
		within(t, "the recorder has the state", func() bool { return acks() >= i+1 })
	}
	if err := stop(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return file, out.String()
}

var recordedStates = [][]fakexds.Resource{
	hosts("b=b.example.com", "a=a.example.com"), hosts("a=a.example.com"), {}, hosts("c=c.example.com", "a=changed.example.com", "b=b.example.com"),
}

// TestAReplayServesWhatWasRecordedInTheSameOrder: the bytes and the order of resources and of states,
// over SotW and delta, recorded over either.
func TestAReplayServesWhatWasRecordedInTheSameOrder(t *testing.T) {
	for _, c := range []struct {
		name, section string
		source        *fakexds.Server
	}{
		{"sotw", "", &fakexds.Server{}},
		{"delta of a relay", "", &fakexds.Server{Relay: true, Name: "hub"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			source := fakexds.Start(t, c.source)
			states := slices.Clone(recordedStates)
			for i := range states {
				states[i] = slices.Clone(states[i])
				for j := range states[i] {
					states[i][j] = states[i][j].WithVersion(fmt.Sprint("v", i))
				}
			}
			file, _ := recorded(t, source, c.section, states)
			address := fmt.Sprintf("127.0.0.1:%d", freePorts(t, 1)[0])
			out, stop := background(t, "replay", file, "--listen", address, "--speed", "1000")
			within(t, "the replay serves", func() bool { return strings.Contains(out.String(), "serving on") })

			conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.Send(&discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "istiod-1"}, TypeUrl: entryType}); err != nil {
				t.Fatal(err)
			}
			nonces := map[string]bool{}
			for i, want := range states {
				resp, err := stream.Recv()
				if err != nil {
					t.Fatal(err)
				}
				if nonces[resp.Nonce] || resp.Nonce == "" || resp.TypeUrl != entryType {
					t.Errorf("state %d: nonce %q, type %q", i, resp.Nonce, resp.TypeUrl)
				}
				nonces[resp.Nonce] = true
				if c.source.Relay { // the order of a delta stream is that in which resources came
					if len(resp.Resources) != len(want) {
						t.Errorf("state %d: %d resources, want %d", i, len(resp.Resources), len(want))
					}
				} else if !slices.EqualFunc(resp.Resources, want, func(a *anypb.Any, b fakexds.Resource) bool {
					return bytes.Equal(a.GetValue(), b.Any.Value)
				}) {
					t.Errorf("state %d differs: %v", i, resp.Resources)
				}
				if err := stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: entryType, ResponseNonce: resp.Nonce, VersionInfo: resp.VersionInfo}); err != nil {
					t.Fatal(err)
				}
			}
			if !strings.Contains(out.String(), "client istiod-1 connected, sotw") {
				t.Errorf("no word of the client: %s", out)
			}
			// The last state stays served, to clients that come late and over the other protocol.
			w := watchEntries(t, address)
			if names, _ := w.next(); !slices.Equal(names, []string{"shop/a", "shop/b", "shop/c"}) {
				t.Errorf("a late client got %v", names)
			}
			within(t, "the end", func() bool {
				return strings.Contains(out.String(), "the recording is over: its last state stays served")
			})
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestARelayOfAReplayHasWhatARelayOfTheUpstreamHas: YAML, versions and all.
func TestARelayOfAReplayHasWhatARelayOfTheUpstreamHas(t *testing.T) {
	source := fakexds.Start(t, &fakexds.Server{})
	file, _ := recorded(t, source, "", recordedStates)
	ports := freePorts(t, 5)
	address := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", ports[i]) }
	out, _ := background(t, "replay", file, "--listen", address(0), "--speed", "1000")
	within(t, "the replay serves", func() bool { return strings.Contains(out.String(), "serving on") })
	got := [2]string{}
	for i, upstream := range []string{source.Addr, address(0)} {
		serveConfig(t, fmt.Sprintf("node: {id: relay}\nadmin: {address: %q}\ndownstream: {listeners: [{address: %q, plaintext: true}]}\nupstreams: [{name: east, guard: {percent: 100}, xds: {addresses: [%q], plaintext: true}}]\n", address(1+2*i), address(2+2*i), upstream))
		within(t, "the relay has the last state", func() bool {
			var b, errs bytes.Buffer
			code := execute([]string{"get", "se", "-A", "-o", "json", "--server", address(2 + 2*i)}, &b, &errs)
			got[i] = b.String()
			return code == 0 && strings.Contains(got[i], "changed.example.com")
		})
	}
	if got[0] != got[1] || !json.Valid([]byte(got[0])) {
		t.Errorf("of the upstream:\n%s\nof the replay:\n%s", got[0], got[1])
	}
}

func TestARecordingIsPrivateAndReplacesNoFile(t *testing.T) {
	source := fakexds.Start(t, &fakexds.Server{})
	file, printed := recorded(t, source, "", recordedStates[:1])
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if !strings.Contains(printed, "secrets in them too") || !strings.Contains(printed, "relay replay "+file) {
		t.Error(printed)
	}
	var errs bytes.Buffer
	code := execute([]string{"record", "-c", filepath.Join(filepath.Dir(file), "relay.yaml"), "--upstream", "east", "-o", file}, &bytes.Buffer{}, &errs)
	if code != 1 || !strings.Contains(errs.String(), "exists: name another file with -o") {
		t.Errorf("%d, %s", code, errs.String())
	}
}

func TestARedactedRecordingHasNoSecret(t *testing.T) {
	source := fakexds.Start(t, &fakexds.Server{})
	secret := []fakexds.Resource{fakexds.MCP("shop/b", &networking.ServiceEntry{Hosts: []string{"b.example.com"}}, func(m *mcp.Resource) {
		m.Metadata.Annotations = map[string]string{"example.com/api-key": "canary-4711"}
	})}
	plain, _ := recorded(t, source, "", [][]fakexds.Resource{secret})
	redacted, _ := recorded(t, source, "", [][]fakexds.Resource{secret}, "--redact")
	for file, want := range map[string]bool{plain: true, redacted: false} {
		data, err := os.ReadFile(file)
		if err != nil || bytes.Contains(data, []byte("canary-4711")) != want || !bytes.Contains(data, []byte("shop/b")) {
			t.Errorf("secret in %s: want %v, %v", file, want, err)
		}
	}
}

// TestADamagedRecordingIsRefusedWithItsPlace: nothing of it is served. A torn one is served with a warning.
func TestADamagedRecordingIsRefusedWithItsPlace(t *testing.T) {
	source := fakexds.Start(t, &fakexds.Server{})
	file, _ := recorded(t, source, "", recordedStates)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	damaged := bytes.Clone(data)
	at := bytes.LastIndex(damaged, []byte("changed.example.com"))
	damaged[at]++
	if err := os.WriteFile(file, damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	if code := execute([]string{"replay", file}, &bytes.Buffer{}, &errs); code != 1 || !strings.Contains(errs.String(), file+" at byte ") || !strings.Contains(errs.String(), "damaged") {
		t.Errorf("%d, %s", code, errs.String())
	}
	if err := os.WriteFile(file, data[:at], 0o600); err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", freePorts(t, 1)[0])
	out, stop := background(t, "replay", file, "--listen", address)
	within(t, "the replay serves", func() bool { return strings.Contains(out.String(), "serving on") })
	if !strings.Contains(out.String(), "warning: at byte ") {
		t.Error(out)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestNothingRecordedLeavesNoFile: the error tells why nothing came.
func TestNothingRecordedLeavesNoFile(t *testing.T) {
	dir := t.TempDir()
	ports := freePorts(t, 3)
	config, file := filepath.Join(dir, "relay.yaml"), filepath.Join(dir, "east.rec")
	text := fmt.Sprintf("admin: {address: \"127.0.0.1:%d\"}\ndownstream: {listeners: [{address: \"127.0.0.1:%d\", plaintext: true}]}\nupstreams: [{name: east, xds: {addresses: [\"127.0.0.1:%d\"], plaintext: true}}, {name: files, file: {path: .}}]\n", ports[0], ports[1], ports[2])
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, stop := background(t, "record", "-c", config, "--upstream", "east", "-o", file)
	within(t, "the reason", func() bool { return strings.Contains(out.String(), "connection refused") })
	if err := stop(); err == nil || !strings.Contains(err.Error(), "nothing came from upstream east") || !strings.Contains(err.Error(), "connection refused") {
		t.Error(err)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Error("the file is there")
	}
	var errs bytes.Buffer
	for upstream, want := range map[string]string{
		"west": `no upstream "west": want one of east, files`, "files": "upstream files is of the kind file, which has no streams to record",
	} {
		errs.Reset()
		if code := execute([]string{"record", "-c", config, "--upstream", upstream, "-o", file}, &bytes.Buffer{}, &errs); code != 1 || !strings.Contains(errs.String(), want) {
			t.Errorf("%d, %s", code, errs.String())
		}
	}
}
