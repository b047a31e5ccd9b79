package attacks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"
	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/internal/testing/fakexds"
)

const (
	largest  = 4 << 20  // bytes of a request, at most, on a listener without client certificates
	manifest = "460MiB" // nine tenths of the limit in deploy/kubernetes/relay.yaml
)

// attacks returns the table. Of the findings that are not here each is one property, without a
// cost, that a test in the package of its code shows: B11 TestPowerfulKindsThatNothingLimitsAreNoted,
// B12 TestATrustDomainIsVouchedForByItsOwnRoots, B15 TestPanicOverAResourceCostsThatResource_C7,
// B20 TestASocketThatAPortNamesIsOursOrNotUsed,
// B21 TestAStateDirectoryThatIsNotOursAndOthersCanWriteToIsNotUsed,
// B22 TestStreamEndsWithItsCertificate.
func attacks() []*attack {
	hello := func(more ...[]byte) []byte {
		return join(append([][]byte{field(sotwNode, node(nil)), text(sotwType, entryType)}, more...)...)
	}
	helloDelta := func(more ...[]byte) []byte {
		return join(append([][]byte{field(deltaNode, node(nil)), text(deltaType, entryType)}, more...)...)
	}
	return []*attack{
		{finding: "B1", name: "a VirtualService of 2,000 hosts and 2,000 namespaces", adds: `evil/vs-\d+`, short: true, run: hostsTimesNamespaces},

		{finding: "B2", name: "a first request of 4 MB of error details", told: `more than \d+ \(the node|no request came within`, short: true,
			run: requests(sotw, [][]byte{hello(field(sotwError, bytes.Repeat(field(3, nil), largest/2-100)))})},
		{finding: "B2", name: "the same, compressed to 4 KB", told: `gzip`,
			run: requests(sotw, [][]byte{hello(field(sotwError, bytes.Repeat(field(3, nil), largest/2-100)))}, compressed())},
		{finding: "B2", name: "a node of 60,000 empty fields",
			run: requests(sotw, [][]byte{join(text(sotwType, entryType), field(sotwNode, field(3, bytes.Repeat(field(1, nil), 60_000))), field(sotwNode, node(nil)))})},
		{finding: "B2", name: "a node of 100,000 values in a list",
			run: requests(sotw, [][]byte{join(text(sotwType, entryType), field(sotwNode, node(map[string]*structpb.Value{"x": structpb.NewListValue(&structpb.ListValue{Values: make([]*structpb.Value, 100_000)})})))})},
		{finding: "B2", name: "a node of 4,000 lists in lists",
			run: requests(sotw, [][]byte{join(text(sotwType, entryType), field(sotwNode, node(map[string]*structpb.Value{"x": nested(4_000)})))})},
		{finding: "B2", name: "a later request of 4 MB of error details",
			run: requests(sotw, [][]byte{hello(), join(text(sotwType, entryType), field(sotwError, bytes.Repeat(field(3, nil), largest/2-100)))})},
		{finding: "B2", name: "a later request of 2 million names", told: `more than \d+ resource names`,
			run: requests(sotw, [][]byte{hello(), join(text(sotwType, entryType), bytes.Repeat(field(sotwNames, nil), largest/2-100))})},
		{finding: "B2", name: "a later request of 2 million names to leave", told: `more than \d+ resource names`,
			run: requests(delta, [][]byte{helloDelta(), join(text(deltaType, entryType), bytes.Repeat(field(deltaLeave, nil), largest/2-100))})},
		{finding: "B2", name: "a later request of 4 MB of initial_resource_versions",
			run: requests(delta, [][]byte{helloDelta(), join(text(deltaType, serviceType), repeat(deltaVersions, 80_000, func(i int) string {
				return string(join(text(1, fmt.Sprintf("evil/%030d", i)), text(2, "0123456")))
			}))})},
		{finding: "B2", name: "a request of 4 MB in frames of one byte", told: `reason=receiving`, short: true, run: tinyFrames},
		{finding: "B2", name: "100 streams of a connection with a part of a request of 63 KiB", run: partialRequests},
		{finding: "B14", name: "all streams of one address, each with headers and a part of a request", run: fullStreams},

		{finding: "B3", name: "65,000 names in 130 types of one stream", run: requests(delta, append([][]byte{helloDelta()}, manyNames(130, 500, 100)...))},
		{finding: "B3", name: "70,000 names in 140 types of one stream", told: `resource names`, short: true,
			run: requests(delta, append([][]byte{helloDelta()}, manyNames(140, 500, 100)...))},
		{finding: "B3", name: "20 MB of names of one stream", told: `bytes of resource names|resource names of more`, run: requests(delta, append([][]byte{helloDelta()}, manyNames(40, 1000, 500)...))},
		{finding: "B3", name: "everything in 250 made-up API versions", resources: 2000, run: madeUpVersions},
		{finding: "B3", name: "everything in 600 made-up types", told: `more than \d+ types`, run: requests(delta, append([][]byte{helloDelta()}, manyTypes("example.com/v%d/Widget", 600)...))},

		{finding: "B4", name: "1,100 streams of made-up clusters and revisions", resources: 2000, once: true, run: madeUpClusters},
		{finding: "B7", name: "who else is there, past a view, and from 127.0.0.6", told: `debug types are not answered`, run: debugPastAView},
		{finding: "B14", name: "100 streams of one connection that ask for nothing", run: silentStreams(100), downstream: "maxStreams: 2000"},
		{finding: "B14", name: "streams of one address until it is refused", told: `no more of one peer`, once: true,
			downstream: "maxStreams: 400", run: silentStreams(400)},
		{finding: "B14", name: "new streams of one address as fast as it can", told: `new streams a second`, once: true, run: hurry},
		{finding: "E6", name: "1,000 streams of one peer that does its worst", resources: worstMore, once: true,
			downstream: "maxStreams: 4000", run: doItsWorst},
		{finding: "B23", name: "the state of all clients, 100 times on one stream, unread", run: debugStatus},
		{finding: "B23", name: "all resources over HTTP", resources: 10_000, run: func(s *stage, n int) {
			together(n, func(int) { s.get("/debug/configz") })
		}},

		{finding: "B5", name: "resources without a namespace", told: `namespace`, adds: `east-public/good`,
			upstream: "import: {namespaces: {include: [public]}}, rewrite: {namespacePrefix: east-}, ",
			run: upstreamHas("east-public/good", fakexds.MCP("/evil", &networking.ServiceEntry{Hosts: []string{"cart.example"}}),
				fakexds.MCP("shop/evil", &networking.ServiceEntry{Hosts: []string{"cart.example"}}),
				fakexds.MCP("public/good", &networking.ServiceEntry{Hosts: []string{"good.example"}}))},
		{finding: "B9", name: "a response with one resource of 250 MB", told: `a resource may have`, upstreams: true, run: respond(func() []byte {
			return response(field(responseResources, entry("evil/e", strings.Repeat("x", 250_000_000))))
		}, 1)},
		{finding: "B9", name: "a response with resources of 54 MB, as in the manifest", memory: manifest, upstreams: true, adds: `evil/.*`, run: respond(func() []byte {
			return response(repeat(responseResources, 18, func(i int) string {
				return string(entry(fmt.Sprintf("evil/e-%d", i), strings.Repeat("x", 3_000_000)))
			}))
		}, 1)},
		{finding: "B9", name: "a response of 300 MB", told: `more memory|larger than max`, upstreams: true, run: respond(func() []byte {
			return response(field(responseResources, make([]byte, 300_000_000)))
		}, 1)},
		{finding: "B9", name: "a response with an identifier of 250 MB", told: `fields other than resources`, upstreams: true, run: respond(func() []byte {
			return response(field(sotwControlPlane, field(1, make([]byte, 250_000_000))))
		}, 1)},
		{finding: "B9", name: "a response with an identifier of 64 MB, compressed", told: `gzip`, upstreams: true,
			server: []grpc.ServerOption{grpc.RPCCompressor(grpc.NewGZIPCompressor())}, //nolint:staticcheck // the other way needs the client's consent
			run:    respond(func() []byte { return response(field(sotwControlPlane, field(1, make([]byte, 64_000_000)))) }, 1)},
		{finding: "B9", name: "four million resources of two bytes", told: `refused`, upstreams: true, run: respond(func() []byte {
			return response(bytes.Repeat(field(responseResources, nil), 4_000_000))
		}, 1)},
		{finding: "B9", name: "names of four million removed resources", upstreams: true, delta: true, run: respond(func() []byte {
			return join(text(2, entryType), text(5, "n"), bytes.Repeat(text(deltaRemoved, fmt.Sprintf("evil/%050d", 0)), 4_000_000))
		}, 1)},
		{finding: "B9", name: "20,000 small responses that are refused", upstreams: true, once: true, told: `refused in part`,
			run: respond(func() []byte { return response(field(responseResources, entry("Evil//", "x"))) }, 20_000)},
		{finding: "B9", name: "a hundred responses of 10 MB in a row", upstreams: true, told: `(?i)refused`, run: respond(func() []byte {
			return response(field(responseResources, make([]byte, 10_000_000)))
		}, 100)},

		{finding: "B9", name: "names and hosts of 3 MB, as in the manifest", memory: manifest, upstreams: true, adds: `evil/.*`, run: respond(func() []byte {
			long := strings.Repeat("x", 3_000_000)
			return response(join(field(responseResources, entry("evil/"+long, "a.example")), field(responseResources, entry("evil/a", long)), field(responseResources, entry("evil/b", long))))
		}, 1)},

		{finding: "B10", name: "endpoints and names for a service of another namespace", adds: `evil/db`,
			rest: "merge: [{kinds: [serviceentries], policy: unionByHost}]",
			run: upstreamHas("evil/db", fakexds.MCP("evil/db", &networking.ServiceEntry{
				Hosts: []string{"db.example"}, SubjectAltNames: []string{"spiffe://east/ns/evil/sa/evil"}, Resolution: networking.ServiceEntry_STATIC,
				Ports: []*networking.ServicePort{{Number: 5432, Name: "tcp"}}, Endpoints: []*networking.WorkloadEntry{{Address: "198.51.100.66"}},
			}))},
		{finding: "B13", name: "a config that tells that it is of another cluster", adds: `evil/forged`, run: forgedProvenance},
		{finding: "B17", name: "control characters in names and hosts", adds: `shop/.*`, run: controlCharacters},

		{finding: "B24", name: "a file of 200,000 lines of labels", told: `more than 200000 keys`, files: true, upstreams: true, run: file(object("metadata: {name: evil, namespace: evil}\nspec:\n" + lines(200_000)))},
		{finding: "B24", name: "a file of 2 MB of numbers in a list", told: `more than 200000 keys`, files: true, upstreams: true, run: file(object("spec: [" + strings.Repeat("1,", 1_000_000) + "1]"))},
		{finding: "B24", name: "a file of aliases of aliases", told: `after aliases are replaced`, files: true, upstreams: true, run: file(object(aliases("NAME: ")))},
		{finding: "B24", name: "a file of just under 16 MiB", told: `msg=refused`, files: true, upstreams: true, run: file(object(strings.Repeat("# nothing\n", 1_670_000)))},
		{finding: "B24", name: "a file of 64 MB", told: `larger than 16 MiB`, files: true, upstreams: true, run: file(object(strings.Repeat("# nothing\n", 6_400_000)))},
		{finding: "B24", name: "a config of 80,000 lines, of aliases, of numbers", told: `the file is too large`, once: true, run: func(s *stage, _ int) {
			s.validate("the file is too large", "node:\n"+lines(80_000))
			s.validate("want a map of fields", "upstreams:\n"+aliases("- "))
			s.validate("the file is too large", "upstreams: ["+strings.Repeat("1,", 400_000)+"1]")
		}},

		{finding: "B6, B8, B16", name: "resources that open what nobody opened", told: `allowAnonymous`, once: true, run: openConfigs},
		{finding: "B18, B19", name: "pages and foreign names at the admin address", told: `403`, once: true, run: func(s *stage, _ int) {
			for _, path := range []string{"/metrics", "/ready", "/healthz", "/debug/configz", "/debug/pprof/heap?gc=1", "/version"} {
				for _, header := range [][]string{{"Host", "evil.example"}, {"Sec-Fetch-Site", "cross-site"}, {"Origin", "https://evil.example"}} {
					code, _ := s.get(path, header...)
					if s.tell("%d", code); code != http.StatusForbidden {
						s.Errorf("%s with %s: %d", path, header, code)
					}
				}
			}
		}},
	}
}

// hostsTimesNamespaces has the upstream tell n VirtualServices, each 38 KB.
func hostsTimesNamespaces(s *stage, n int) {
	var all []fakexds.Resource
	for i := range n {
		vs := &networking.VirtualService{Http: []*networking.HTTPRoute{{Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: "a.example"}}}}}}
		for j := range 2000 {
			vs.Hosts = append(vs.Hosts, fmt.Sprintf("h%d.x", j))
			vs.ExportTo = append(vs.ExportTo, fmt.Sprintf("n%d", j))
		}
		all = append(all, fakexds.MCP(fmt.Sprintf("evil/vs-%d", i), vs))
	}
	s.west[0].Set(serviceType, all...)
	s.west[0].Push(serviceType)
	s.served("evil/vs-0")
}

// served waits until a client that comes now is served a resource, and returns it.
func (s *stage) served(name string) string {
	c, err := s.connect(newcomer, "")
	if err != nil {
		s.Error(err)
		return ""
	}
	s.await(name+" to be served", func() bool { return c.get(name) != "" })
	return c.get(name)
}

// upstreamHas makes an attack of resources of the upstream. The relay serves one of them.
func upstreamHas(served string, resources ...fakexds.Resource) func(*stage, int) {
	return func(s *stage, _ int) {
		s.west[0].Set(entryType, resources...)
		s.west[0].Push(entryType)
		if served != "" {
			s.served(served)
		}
	}
}

func forgedProvenance(s *stage, _ int) {
	upstreamHas("evil/forged", fakexds.MCP("evil/forged", &networking.ServiceEntry{Hosts: []string{"forged.example"}}, func(r *mcp.Resource) {
		r.Metadata.Annotations = map[string]string{"meshrelay.io/from": "forger(west-9)@1 via x"}
	}))(s, 1)
	if got := s.served("evil/forged"); strings.Contains(got, "forger") || !strings.Contains(got, "west-0") {
		s.Errorf("the annotation is believed: %q", got)
	}
}

// controlCharacters has the upstream tell names that would steer a terminal, and shows them.
func controlCharacters(s *stage, _ int) {
	const name = "shop/a\x1b]0;pwned\x07\x1b[31mb"
	upstreamHas(name, fakexds.MCP(name, &networking.ServiceEntry{Hosts: []string{"\x1b[31m"}}),
		fakexds.MCP("shop/\u009b31m\u202eb", &networking.ServiceEntry{Hosts: []string{"\u009b31m"}}))(s, 1)
	for _, command := range []string{"get se -n shop --server " + s.address, "get se -n shop -o yaml --server " + s.address, "explain se -n shop --admin " + s.admin, "status --admin " + s.admin} {
		out, _ := exec.Command(binary, strings.Fields(command)...).CombinedOutput() // what it prints counts
		s.tell("%s", out)
	}
}

// response encodes a SotW response of ServiceEntries.
func response(fields []byte) []byte {
	return join(text(responseVersion, "1"), text(responseTypeURL, entryType), text(responseNonce, "n"), fields)
}

// entry encodes an element of a response.
func entry(name, host string) []byte {
	r := fakexds.MCP(name, &networking.ServiceEntry{Hosts: []string{host}}).Any
	return join(text(1, r.TypeUrl), field(2, r.Value))
}

// manyNames returns requests for names in many types.
func manyNames(types, names, length int) (out [][]byte) {
	for i := range types {
		out = append(out, join(text(deltaType, fmt.Sprintf("example.com/v%d/Widget", i)), repeat(deltaNames, names, func(j int) string {
			return fmt.Sprintf("evil/%0*d", length-5, i*names+j)
		})))
	}
	return out
}

func manyTypes(pattern string, n int) (out [][]byte) {
	for i := range n {
		out = append(out, text(deltaType, fmt.Sprintf(pattern, i+20)))
	}
	return out
}

func nested(depth int) *structpb.Value {
	v := structpb.NewNullValue()
	for range depth {
		v = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{v}})
	}
	return v
}

// madeUpVersions asks for everything under many names.
func madeUpVersions(s *stage, n int) {
	hello := join(field(deltaNode, node(nil)), text(deltaType, entryType))
	requests(delta, append([][]byte{hello}, manyTypes("networking.istio.io/v%d/ServiceEntry", 250)...))(s, n)
	if got := s.received.Load(); got > int64(n)*10_000_000 {
		s.Errorf("by %d: %s are sent", n, megabytes(got))
	}
}

// madeUpClusters opens more streams than there can be views, each of a cluster of its own.
func madeUpClusters(s *stage, _ int) {
	together(11, func(i int) {
		conn := s.dial(attacker, s.address)
		for j := range 100 {
			name := structpb.NewStringValue(fmt.Sprintf("made-up-%d-%d", i, j))
			s.ask(conn, delta, join(text(deltaType, "example.com/v1/Nothing"), field(deltaNode, node(map[string]*structpb.Value{"CLUSTER_ID": name, "ISTIO_REVISION": name}))))
		}
	})
}

// silentStreams opens streams that ask for one thing that there is not.
func silentStreams(each int) func(*stage, int) {
	return func(s *stage, n int) {
		together(n, func(int) {
			var conn *grpc.ClientConn
			for i := range each {
				if i%100 == 0 {
					conn = s.dial(attacker, s.address)
				}
				s.ask(conn, delta, join(text(deltaType, "example.com/v1/Nothing"), field(deltaNode, node(nil))))
			}
		})
	}
}

// hurry opens and ends streams as fast as it can, and looks whether somebody else comes in. How
// long that takes is for TestOnePeersStreamsDoNotDelayThoseOfOthers: here it depends on the machine.
func hurry(s *stage, _ int) {
	var done atomic.Bool
	var ended atomic.Int64
	hurried := make(chan struct{}) // closed when the attackers have ended 500 streams
	together(1+20*100, func(i int) {
		if i == 0 {
			defer done.Store(true)
			select {
			case <-hurried:
			case <-s.ctx.Done():
			}
			for range 5 {
				if _, err := s.connect(newcomer, ""); err != nil {
					s.Errorf("a new client is refused: %v", err)
				}
			}
			return
		}
		for conn := s.shared(i % 20); !done.Load(); {
			ctx, cancel := context.WithCancel(s.ctx)
			stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, delta)
			if err == nil {
				_ = stream.CloseSend() // a request would cost more than the stream, and slow the attack down
				err = stream.RecvMsg(&discoveryv3.DeltaDiscoveryResponse{})
			}
			if cancel(); err != nil && !errors.Is(err, io.EOF) {
				s.tell("%v", err)
			}
			if ended.Add(1) == 500 {
				close(hurried)
			}
		}
	})
}

// debugPastAView asks who else is there where a view hides them, and as what a sidecar lets through.
func debugPastAView(s *stage, n int) {
	together(n, func(int) {
		for from, to := range map[string]string{attacker: s.restricted, "127.0.0.6": s.address} {
			stream, err := s.open(s.dial(from, to), sotw)
			if err != nil {
				s.Error(err)
				return
			}
			_ = stream.SendMsg(raw(join(field(sotwNode, node(nil)), text(sotwType, "istio.io/debug/syncz")))) // RecvMsg tells
			var resp discoveryv3.DiscoveryResponse
			if err := stream.RecvMsg(&resp); err == nil {
				s.Errorf("%s is told of %d clients at %s", from, len(resp.Resources), to)
			} else {
				s.tell("%v", err)
			}
		}
	})
}

// debugStatus asks for the state of all clients again and again, and reads nothing.
func debugStatus(s *stage, n int) {
	together(n, func(int) {
		stream, err := s.open(s.dial(attacker, s.address), sotw)
		for i := 0; err == nil && i < 100; i++ {
			err = stream.SendMsg(raw(join(field(sotwNode, node(nil)), text(sotwType, "istio.io/debug/syncz"))))
		}
	})
}

// file makes an attack of a file in the directory of each attacking upstream.
func file(content string) func(*stage, int) {
	return func(s *stage, n int) {
		for i := range n {
			s.write(fmt.Sprintf("west-%d/evil.yaml", i), content)
		}
		s.await("the files to be looked at", func() bool { return strings.Contains(s.allTold(), fmt.Sprint("west-", n-1)) })
	}
}

func object(rest string) string {
	return "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\n" + rest
}

func lines(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "  l%d: v\n", i)
	}
	return b.String()
}

// aliases returns lists, each under its name if there is one. Each list has nine aliases of the
// one before, so that the last one has 9^9 values.
func aliases(head string) string {
	b := strings.ReplaceAll(head, "NAME", "a") + "&a [1,1,1,1,1,1,1,1,1]\n"
	for c := 'b'; c <= 'i'; c++ {
		b += strings.ReplaceAll(head, "NAME", string(c)) + "&" + string(c) + " [" + strings.Repeat("*"+string(c-1)+",", 9) + "]\n"
	}
	return b
}

// openConfigs looks whether resources are refused, and for their reason, that open what nobody opened.
func openConfigs(s *stage, _ int) {
	if err := os.Mkdir(s.dir+"/empty", 0o700); err != nil {
		s.Fatal(err)
	}
	for listener, why := range map[string]string{
		`{address: "0.0.0.0:0", plaintext: true}`:                                          "allowInsecure",
		`{address: "127.0.0.1:0", tls: {certFile: a, keyFile: a}}`:                         "allowAnonymous",
		`{address: "127.0.0.1:0", tls: {certFile: a, keyFile: a, clientCAs: [{file: a}]}}`: "allowAnyIdentity",
		`{address: "127.0.0.1:0", plaintext: true, view: tenant}`:                          "match.identities",
	} {
		views := ""
		if strings.Contains(listener, "view") {
			views = "views: [{name: tenant, match: {identities: ['spiffe://a.example/**']}}]\n"
		}
		s.validate(why, views+"upstreams: [{name: east, file: {path: empty}}]\ndownstream: {listeners: ["+listener+"]}\n")
	}
	s.write("token", "t")
	s.validate("same token", "upstreams:\n- {name: east, xds: {addresses: ['a:1'], tls: {}, tokenFile: token}}\n- {name: west, xds: {addresses: ['b:1'], tls: {}, tokenFile: token}}\n"+
		"downstream: {listeners: [{address: '127.0.0.1:0', plaintext: true}]}\n")
}
