package attacks

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/internal/testing/fakekube"
	"meshrelay/internal/testing/fakexds"
)

// setEast gives the honest upstream its resources: two that the bystander knows, one of them in
// its n-th edition, and more of some size.
func (s *stage) setEast(n, more int) {
	entries := []fakexds.Resource{
		fakexds.MCP("shop/cart", &networking.ServiceEntry{Hosts: []string{"cart.example"}, Ports: []*networking.ServicePort{{Number: uint32(80 + n), Name: "http"}}}),
		fakexds.MCP("payments/db", &networking.ServiceEntry{
			Hosts: []string{"db.example"}, SubjectAltNames: []string{"spiffe://east/ns/payments/sa/db"}, Resolution: networking.ServiceEntry_STATIC,
			Ports: []*networking.ServicePort{{Number: 5432, Name: "tcp"}}, Endpoints: []*networking.WorkloadEntry{{Address: "192.0.2.1"}},
		}),
	}
	for i := range more {
		entries = append(entries, fakexds.MCP(fmt.Sprintf("many/s-%d", i), &networking.ServiceEntry{Hosts: []string{fmt.Sprintf("%0400d.example", i)}}))
	}
	s.east.Set(entryType, entries...)
}

func (s *stage) configure(a *attack, n int) {
	var b strings.Builder
	fmt.Fprintf(&b, "node: {id: relay}\nstate: {dir: state}\nadmin: {address: %q}\n%s\n", s.admin, a.rest)
	fmt.Fprintf(&b, "views: [{name: restricted, namespaces: {include: [public]}}, {name: all, default: true}]\n")
	fmt.Fprintf(&b, "downstream:\n  startupTimeout: 5s\n  listeners: [{address: %q, plaintext: true}, {address: %q, plaintext: true, view: restricted}]\n  %s\n", s.address, s.restricted, a.downstream)
	fmt.Fprintf(&b, "upstreams:\n- {name: east, xds: {addresses: [%q], plaintext: true}}\n", s.east.Addr)
	wests := 1
	switch {
	case a.upstreams:
		wests = n
	case a.edge: // the attack comes from somewhere else
		wests = 0
	}
	if a.edge {
		s.north = s.apiServer("north")
		s.north.Put(entriesOf, fakekube.Object("north", "orders", `{"hosts":["orders.example"],"ports":[{"number":80,"name":"http"}]}`))
		fmt.Fprintf(&b, "- {name: north, kubernetes: {cluster: {kubeconfig: north/config}}}\n")
	}
	limits := ""
	if n == 1 && a.limits != "" { // fifty share what there is
		limits = "limits: {" + a.limits + "}, "
	}
	for i := range wests {
		fmt.Fprintf(&b, "- {name: west-%d, firstSync: optional, %s%s%s}\n", i, a.upstream, limits, s.source(a, i))
	}
	for i := range a.empty {
		name := fmt.Sprint("empty-", i)
		s.mkdir(name)
		fmt.Fprintf(&b, "- {name: %s, file: {path: %s}}\n", name, name)
	}
	if a.clusters != "" {
		fmt.Fprintf(&b, "clusters: [{name: found, %s}]\n", s.prepareFound(a))
	}
	s.write("relay.yaml", b.String())
}

// source starts the i-th attacking upstream, and returns its section of the config.
func (s *stage) source(a *attack, i int) string {
	name := fmt.Sprint("west-", i)
	switch {
	case a.api != nil:
		s.apis = append(s.apis, s.hostile(name, a.api))
		return fmt.Sprintf("kubernetes: {cluster: {kubeconfig: %s/config}, %s}", name, a.section)
	case a.files:
		s.mkdir(name)
		return fmt.Sprintf("file: {path: %s}", name)
	}
	west := fakexds.Start(s.T, &fakexds.Server{Relay: a.delta, Name: name, Options: append([]grpc.ServerOption{grpc.ForceServerCodecV2(newCodec())}, a.server...)})
	s.west = append(s.west, west)
	return fmt.Sprintf("xds: {addresses: [%q], plaintext: true}", west.Addr)
}

// mkdir makes a directory.
func (s *stage) mkdir(name string) {
	s.Helper()
	if err := os.Mkdir(filepath.Join(s.dir, name), 0o700); err != nil {
		s.Fatal(err)
	}
}

// write makes a file, whole at once.
func (s *stage) write(name, text string) string {
	s.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		s.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		s.Fatal(err)
	}
	return path
}
