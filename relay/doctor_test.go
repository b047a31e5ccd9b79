package relay

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"meshrelay/config"
	"meshrelay/internal/doctor"
)

// Without time for files, a doctor reports their number. With time, it reads all.
func TestDoctorTellsWhichFilesItLeavesOut(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		text := "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: " + name + "}\nspec: {hosts: [x.example]}\n"
		if err := os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "relay.yaml")
	if err := os.WriteFile(path, []byte("node: {id: n}\ndownstream: {listeners: [{address: 127.0.0.1:0, plaintext: true}]}\nadmin: {address: 127.0.0.1:0}\nupstreams:\n- {name: east, file: {path: "+dir+"}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(path, Sources()...)
	if err != nil {
		t.Fatal(err)
	}
	for files, want := range map[time.Duration]string{
		0:         "checked 0 resources in 0s, and 0 of 2 files to the end: relay validate checks all",
		time.Hour: "2 resources",
	} {
		d := Doctor{Config: cfg, Upstream: "east", Limit: time.Hour, Files: files, Running: func(context.Context) bool { return false }}
		var got []string
		for _, f := range d.Examine(t.Context()) {
			if f.Level != doctor.OK || f.Upstream != "east" {
				t.Errorf("finding %+v", f)
			}
			got = append(got, f.What)
		}
		if strings.Join(got, "\n") != want {
			t.Errorf("with %v: %q, want %q", files, got, want)
		}
	}
}

func TestDoctorNamesAStateThatTheUserOfTheRelayCanNotUse(t *testing.T) {
	denied := func(name string) error { return &fs.PathError{Op: "open", Path: "/own/" + name, Err: syscall.EACCES} }
	var many []error
	for i := range 7 {
		many = append(many, denied(fmt.Sprintf("upstream-u%d.state", i)))
	}
	for name, tc := range map[string]struct {
		trouble        []error
		inUse, running bool
		want           []string // level, check, what, why and fix, each in parts
	}{
		"nothing": {},
		"a file of another user": {trouble: []error{denied("relay.lock")}, want: []string{
			"failed|state|can not be used|open /own/relay.lock: permission denied, for user |another user may have run the relay there|chown -R USER /own"}},
		"seven of them": {trouble: many, want: []string{
			"failed|state|upstream-u0.state: permission denied; |upstream-u4.state: permission denied; and 2 more, for user|chown -R USER /own"}},
		"another relay": {inUse: true, want: []string{
			"failed|lock|in use by another process|another config has the same state.dir|its own state.dir|fuser -v /own/relay.lock"}},
		"this relay":                       {inUse: true, running: true, want: []string{"ok|lock|in use by the running relay"}},
		"this relay has another directory": {running: true},
		"another relay, of another user": {trouble: []error{denied("events.log")}, inUse: true, want: []string{
			"failed|state|events.log|chown", "failed|lock|in use by another process|fuser"}},
	} {
		found := stored("/own", tc.trouble, tc.inUse, tc.running)
		if len(found) != len(tc.want) {
			t.Errorf("%s: %+v", name, found)
			continue
		}
		for i, f := range found {
			line := strings.Join([]string{string(f.Level), f.Check, f.What, f.Why, f.Fix}, "|")
			rest := line
			for _, part := range strings.Split(tc.want[i], "|") {
				_, after, ok := strings.Cut(rest, part)
				if !ok {
					t.Errorf("%s: %q is missing in %s", name, part, line)
				}
				rest = after
			}
		}
	}
}

// TestDoctorAsksWhatJudgesClients: the Workload API, the URLs with keys, and the files of credentials.
func TestDoctorAsksWhatJudgesClients(t *testing.T) {
	dir := t.TempDir()
	keys := filepath.Join(dir, "jwks")
	write(t, keys, `{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`)
	found := credentials(t.Context(), "downstream.listeners[0]", config.Listener{
		TLS: &config.ListenerTLS{SPIFFE: &config.SPIFFE{WorkloadAPI: "unix://" + filepath.Join(dir, "agent.sock")}},
		Tokens: []config.TokenIssuer{
			{Name: "good", Issuer: "a", JWKSFile: keys},
			{Name: "away", Issuer: "b", JWKSURL: "https://127.0.0.1:1/jwks"},
			{Name: "cluster", Review: &config.TokenReview{Kubeconfig: filepath.Join(dir, "none")}},
		},
	})
	var got []string
	for _, f := range found {
		got = append(got, fmt.Sprint(f.Level, " ", f.Check, " ", f.Target))
	}
	want := []string{
		fmt.Sprint(doctor.Failed, " spiffe unix://", filepath.Join(dir, "agent.sock")), fmt.Sprint(doctor.OK, " tokens downstream.listeners[0].tokens[0]"),
		fmt.Sprint(doctor.Failed, " tokens downstream.listeners[0].tokens[1]"), fmt.Sprint(doctor.Failed, " tokens downstream.listeners[0].tokens[2]"),
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
