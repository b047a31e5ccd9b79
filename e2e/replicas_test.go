package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// ordersRole are the rights that replicas need.
const ordersRole = `apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: relay-orders, namespace: mesh}
rules:
- {apiGroups: [""], resources: [configmaps], verbs: [get, update, watch], resourceNames: [relay-orders]}
- {apiGroups: [""], resources: [configmaps], verbs: [create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: relay-orders, namespace: mesh}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: relay-orders}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: relay}]
`

// TestReplicasFollowOrdersOverAnAPIServer has three relays follow the orders in a real API server, which is paused meanwhile.
func TestReplicasFollowOrdersOverAnAPIServer(t *testing.T) {
	t.Parallel()
	k := newKubernetesWith(t, "east", "RBAC")
	k.createNamespace("mesh")
	for _, manifest := range strings.Split(ordersRole, "---\n") {
		k.apply(manifest)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	b, err := os.ReadFile(k.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, kubeconfig, strings.Replace(string(b), "token: "+adminToken, "token: "+relayToken, 1))
	relays, dirs := []*relay{}, []string{}
	for _, name := range []string{"relay-0", "relay-1", "relay-2"} {
		dir := t.TempDir()
		for i := range 20 {
			writeFile(t, filepath.Join(dir, fmt.Sprintf("entry-%02d.yaml", i)), fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: entry-%02[1]d, namespace: shop}
spec: {hosts: [entry-%02[1]d.example], location: MESH_EXTERNAL, ports: [{number: 80, name: http, protocol: HTTP}], resolution: NONE}
`, i))
		}
		r := relayOf(t, name, fmt.Sprintf(`upstreams:
- {name: east, file: {path: %q}, guard: {percent: 30, count: 3, holdFor: forever}}
downstream: {listeners: [{address: "XDS", plaintext: true}]}
state: {dir: DIR/state}
replicas: {cluster: {kubeconfig: %q}, namespace: mesh}
`, dir, kubeconfig)).start()
		relays, dirs = append(relays, r), append(dirs, dir)
	}
	all := func(what string, text string, is bool) {
		t.Helper()
		eventually(t, what, func() error {
			for _, r := range relays {
				if out, _ := r.command("status"); strings.Contains(out, text) != is {
					return fmt.Errorf("relay %s tells\n%s", r.name, out)
				}
			}
			return nil
		})
	}
	serve := func(what string, want ...int) {
		t.Helper()
		eventually(t, what, func() error {
			for i, r := range relays {
				if n := len(r.configs()); n != want[i] {
					return fmt.Errorf("relay %s serves %d, want %d", r.name, n, want[i])
				}
			}
			return nil
		})
	}
	remove := func(i int) {
		t.Helper()
		files, err := filepath.Glob(filepath.Join(dirs[i], "*.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		relays[i].pause(func() { // else the guard may let some go before it sees the others
			for _, f := range files {
				if err := os.Remove(f); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	for _, r := range relays {
		r.ready()
	}
	all("the orders are read", "the ConfigMap can not be used", false)
	serve("all serve the files", 20, 20, 20)
	everywhere := "in force on 3 of 3 replicas"
	eventually(t, "all know each other", func() error {
		for _, r := range relays {
			if out, _ := r.command("status"); strings.Count(out, "follows")+strings.Count(out, "this one") != 3 {
				return fmt.Errorf("relay %s tells\n%s", r.name, out)
			}
		}
		return nil
	})
	relays[0].must(0, "freeze east --reason INC-1", everywhere)
	all("all are frozen", "INC-1", true)
	relays[1].must(0, "unfreeze east", everywhere)
	all("none is frozen", "INC-1", false)

	// Guards stay local, and a release at any replica is for the same hold.
	remove(0)
	eventually(t, "the guard holds", func() error {
		if out, _ := relays[0].command("status"); !strings.Contains(out, "held") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})

	// The API server does not answer.
	pause := func(s syscall.Signal) {
		t.Helper()
		if err := syscall.Kill(-k.server.cmd.Process.Pid, s); err != nil {
			t.Fatal(err)
		}
	}
	pause(syscall.SIGSTOP)
	relays[0].must(1, "release east --all", "the ConfigMap with the orders can not be used")
	all("they tell that the orders are not read", "the ConfigMap can not be used", true)
	relays[2].must(0, "freeze east --reason alone", "in force on this replica alone")
	relays[2].must(0, "unfreeze east", "in force on this replica alone")
	relays[2].must(0, "freeze east --reason INC-2", "in force on this replica alone")
	writeFile(t, filepath.Join(dirs[0], "new.yaml"), `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: new, namespace: shop}
spec: {hosts: [new.example], location: MESH_EXTERNAL, ports: [{number: 80, name: http, protocol: HTTP}], resolution: NONE}
`)
	serve("serving goes on", 21, 20, 20)
	pause(syscall.SIGCONT)
	all("the orders are read again", "the ConfigMap can not be used", false)
	all("the freeze is followed", "INC-2", true)
	relays[1].must(0, "unfreeze east", everywhere)
	all("none is frozen again", "INC-2", false)

	eventually(t, "the hold of relay-0 is released at relay-1", func() error { // once it was told there
		if out, code := relays[1].command("release", "east", "--all", "--reason", "gone"); code != 0 || !strings.Contains(out, everywhere) {
			return fmt.Errorf("%d: %s", code, out)
		}
		return nil
	})
	serve("what relay-0 held is gone", 1, 20, 20)
	remove(1) // the same content
	serve("what was released is not held again", 1, 0, 20)

	// A replica that was away follows the orders before it serves.
	relays[2].terminate()
	relays[0].must(0, "freeze east --reason INC-3", "in force on 2 of 3 replicas")
	relays[2].start().ready()
	all("all are frozen at last", "INC-3", true)
}
