package relay

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"meshrelay/config"
	"meshrelay/internal/doctor"
	"meshrelay/internal/testing/fakekube"
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

// TestDoctorNamesRightsThatSinksAndReplicasLack: it asks the API server for the rules of its identity, and compares
// them with deploy/kubernetes.
func TestDoctorNamesRightsThatSinksAndReplicasLack(t *testing.T) {
	code, rules := 0, ""
	s := fakekube.New()
	s.Set(func() {
		s.Fault = func(w http.ResponseWriter, r *http.Request) bool {
			body, _ := io.ReadAll(r.Body)
			if r.Method != http.MethodPost || r.URL.Path != "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews" || !strings.Contains(string(body), `"namespace":"istio-system"`) {
				t.Errorf("asked %s %s: %s", r.Method, r.URL, body)
			}
			w.WriteHeader(code)
			fmt.Fprintf(w, `{"kind":"SelfSubjectRulesReview","status":{"resourceRules":[%s]}}`, rules)
			return true
		}
	})
	dir := t.TempDir()
	fakekube.WriteKubeconfig(t, filepath.Join(dir, "site"), s.Start(t), "own")
	cfg, err := config.Parse(filepath.Join(dir, "relay.yaml"), []byte(`node: {id: n}
upstreams: [{name: east, file: {path: .}}]
clusters: [{name: all, secrets: {cluster: {kubeconfig: site}, namespace: mesh}, upstream: {kubernetes: {status: meshrelay.io/Distributed}}}]
views: [{name: dr}]
sinks: [{name: dr, view: dr, cluster: {kubeconfig: site}}]
replicas: {cluster: {kubeconfig: site}}
downstream: {listeners: [{address: "127.0.0.1:0", plaintext: true}]}
`), Sources()...)
	if err != nil {
		t.Fatal(err)
	}
	const (
		all     = `{"verbs":["*"],"apiGroups":["*"],"resources":["*"]}`
		objects = `{"verbs":["get","list","watch","create","patch"],"apiGroups":["*"],"resources":["*"]}` // prune is off
		kinds   = `{"verbs":["get","list","watch","create","patch"],"apiGroups":["networking.istio.io","security.istio.io","telemetry.istio.io","extensions.istio.io","gateway.networking.k8s.io","gateway.networking.x-k8s.io"],"resources":["*"]}`
	)
	for name, tc := range map[string]struct {
		code         int
		rules        string
		sink, orders string
	}{
		"everything": {http.StatusCreated, all, "the relay has its rights", "the relay has its rights"},
		"no updates": {http.StatusCreated, objects, "no rule that the server tells grants update leases", "grants update"},
		"another name": {http.StatusCreated, objects + `,{"verbs":["update"],"apiGroups":["","coordination.k8s.io"],"resources":["configmaps","leases"],"resourceNames":["meshrelay-sink-dr"]}`,
			"the relay has its rights", "grants update configmaps; update leases"},
		"no Lease": {http.StatusCreated, objects + `,{"verbs":["update"],"apiGroups":["","coordination.k8s.io"],"resources":["configmaps","leases"],"resourceNames":["meshrelay-sink-dr","relay-orders"]}`,
			"the relay has its rights", "grants update leases"},
		"no ConfigMap": {http.StatusCreated, kinds + `,{"verbs":["get","update"],"apiGroups":["coordination.k8s.io"],"resources":["leases"]}`,
			"the relay has its rights", "grants get, update, watch configmaps"},
		"nothing":          {http.StatusCreated, "", "get, update leases; get, list, watch, create, patch ", "grants get, update, watch configmaps; get, update leases"},
		"not the identity": {http.StatusUnauthorized, "", "does not accept the credentials", "does not accept the credentials"},
	} {
		s.Set(func() { code, rules = tc.code, tc.rules })
		found := doctor.Run(t.Context(), time.Minute, Doctor{Config: cfg}.sites())
		if len(found) != 2 {
			t.Fatalf("%s: %+v", name, found)
		}
		for i, want := range []string{tc.sink, tc.orders} {
			if got := found[i].What + ": " + found[i].Why; !strings.Contains(got, want) || !strings.Contains(found[i].Target, "https://") || (found[i].Level == doctor.OK) != strings.Contains(want, "has its rights") {
				t.Errorf("%s: %+v, want %q", name, found[i], want)
			}
		}
	}
}
