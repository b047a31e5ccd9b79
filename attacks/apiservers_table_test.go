package attacks

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"meshrelay/internal/testing/fakekube"
)

// Limits and sections of attacking upstreams.
const (
	tight     = "maxBytes: 16777216"
	selecting = "discoverySelectors: [mesh=yes]"
	meshMode  = "ingress: {mode: mesh}"

	discovering = "services: {mode: discover}, " // an attribute of the upstream
)

// apiServerAttacks returns the attacks of API servers, of who writes ConfigMaps, Secrets and kubeconfigs, and of who
// reaches the admin port.
func apiServerAttacks() (all []*attack) {
	large := strings.Repeat("x", 2<<20)
	version := func(i int) string {
		return fmt.Sprintf(`,"resourceVersion":"%d%s"`, i, large)
	}
	inNamespace := func(i int, metadata string) string { return named("evil", fmt.Sprint("e-", i), metadata, "") }
	for _, a := range [][]*attack{meshConfigs(), lists(inNamespace, version), decoded(), foundClusters(), adminPort()} {
		all = append(all, a...)
	}
	for _, a := range all {
		a.edge = true
		a.upstreams = a.api != nil
		if a.run == nil {
			a.run = strike
		}
	}
	return all
}

// meshConfigs are the attacks of who writes the ConfigMap of the mesh, and of discovery.
func meshConfigs() []*attack {
	const configMap = "/configmaps/istio"
	mesh := func(text string) evil { return path(configMap, answer(`{"data":{"mesh":`, strconv.Quote(text), `}}`)) }
	return []*attack{
		{finding: "D1", name: "a MeshConfig of 360 bytes of aliases", section: meshMode, told: `west-0.*values after aliases`, api: mesh(aliases("NAME: ") + "ingressControllerMode: *i\n")},
		{finding: "D1", name: "a MeshConfig of 100,000 brackets", section: meshMode, told: `west-0.*too large`, api: mesh("ingressControllerMode: " + strings.Repeat("[", 100_000))},
		{finding: "D1", name: "a MeshConfig of 28 MB of numbers in a list", section: meshMode, told: `west-0.*larger than`, api: mesh("a: [" + strings.Repeat("1,", 14_000_000) + "1]\n")},
		{finding: "D1", name: "a ConfigMap of 2.5 million keys", section: meshMode, told: `west-0.*larger than 4 MiB`, api: path(configMap, func(w http.ResponseWriter, _ *http.Request) {
			send(w, `{"data":{"mesh":""`)
			for i := 0; i < 250 && send(w, keys(i*10_000, 10_000, `,"%07d":""`)); i++ {
			}
			send(w, `}}`)
		})},

		{finding: "D3", name: "discovery of 32 MB of empty groups, compressed to 32 KB", told: `west-0.*compressed`, api: path("/apis", zipped(`{"kind":"APIGroupDiscoveryList","items":[`, strings.Repeat("{},", 11_000_000), "{}]}"))},
		{finding: "D3", name: "discovery of 32 MB of empty groups", told: `west-0.*too many fields and elements`, api: path("/apis", answer(`{"kind":"APIGroupDiscoveryList","items":[`, strings.Repeat("{},", 11_000_000), "{}]}"))},
		{finding: "D3", name: "discovery of a kind in 300,000 versions", told: `west-0.*more than`, api: path("/apis", func(w http.ResponseWriter, _ *http.Request) {
			send(w, `{"kind":"APIGroupDiscoveryList","items":[{"metadata":{"name":"networking.istio.io"},"versions":[{}`)
			for i := 0; i < 30 && send(w, keys(i*10_000, 10_000, `,{"version":"v%07d","resources":[{"resource":"e","responseKind":{"kind":"ServiceEntry"},"verbs":["list","watch"]}]}`)); i++ {
			}
			send(w, `]}]}`)
		})},

		{finding: "D11", name: "a cluster whose UID is 20 MB", told: `west-0.*larger than 4 MiB`, api: path("/namespaces/kube-system", answer(`{"metadata":{"name":"kube-system","uid":"`, strings.Repeat("x", 20<<20), `"}}`)), run: largeUID},
		{finding: "D11", name: "a cluster whose UID steers a terminal", told: `west-0.*uid of \d+ bytes`, api: path("/namespaces/kube-system", answer(`{"metadata":{"name":"kube-system","uid":"a\u001b]0;pwned\u0007\u009b31m"}}`)), run: largeUID},
	}
}

// lists are the attacks of lists and watches that are more than the budget of an upstream.
func lists(in func(i int, metadata string) string, version func(int) string) []*attack {
	const n = 250 // of 2 MB
	bare := func(i int) string { return in(i, version(i)) }
	longName := func(i int) string {
		return named("evil", strings.TrimSuffix(version(i)[20:], `"`), `,"resourceVersion":"1"`, "")
	}
	small := func(i int) string { return in(i, `,"resourceVersion":"1"`) }
	return []*attack{
		{finding: "D4", name: "a list of 500 MB of versions", limits: tight, told: `west-0.*(limits.maxBytes|bytes: want)`, api: objects("serviceentries", n, bare)},
		{finding: "D4", name: "a list of 500 MB of names", limits: tight, told: `west-0.*(limits.maxBytes|bytes: want)`, api: objects("serviceentries", n, longName)},
		{finding: "D4", name: "a list of two million objects of a namespace that is not selected", seldom: true, more: 1 << 30, once: true, limits: tight, section: selecting, told: `west-0`, api: objects("serviceentries", 2_000_000, small)},
		{finding: "D4", name: "a list of 500 MB of versions of a namespace that is not selected", limits: tight, section: selecting, told: `west-0.*(limits.maxBytes|bytes: want)`, api: objects("serviceentries", n, bare)},
		{finding: "D4", name: "a list of 500 MB of versions of namespaces", limits: tight, section: selecting, told: `west-0.*(limits.maxBytes|bytes: want)`, api: objects("namespaces", n, func(i int) string {
			return named("", fmt.Sprint("ns-", i), version(i), "")
		})},
		{finding: "D4", name: "a list of 500 MB of versions of Services", limits: tight, section: "ingress: {mode: strict}", told: `west-0.*(limits.maxBytes|bytes: want)`, api: objects("services", n, bare)},
		{finding: "D4", name: "a list of 500,000 pods with labels of their own", upstream: discovering, limits: tight, once: true, told: `west-0.*limits.maxBytes`, api: objects("pods", 500_000, func(i int) string {
			return in(i, fmt.Sprintf(`,"resourceVersion":"1","labels":{"a":"%d"}`, i))
		})},
		{finding: "D4", name: "an EndpointSlice of 250,000 endpoints", upstream: discovering, limits: tight, told: `west-0`, api: objects("endpointslices", 1, func(i int) string {
			return named("evil", "e", `,"resourceVersion":"1","labels":{"kubernetes.io/service-name":"e"}`, `,"addressType":"IPv4","endpoints":[{}`+strings.Repeat(`,{"addresses":["10.0.0.1"]}`, 250_000)+"]")
		})},
		{finding: "D4", name: "5,000 ServiceEntries that each select 5,000 pods", upstream: discovering, limits: tight, more: 1 << 30, once: true, adds: `evil/e-\d+`, api: anyOf(
			objects("serviceentries", 5000, func(i int) string {
				return named("evil", fmt.Sprint("e-", i), `,"resourceVersion":"1"`, fmt.Sprintf(`,"spec":{"hosts":["h%d.example"],"resolution":"STATIC","ports":[{"number":80,"name":"p%d"}],"workloadSelector":{"labels":{"a":"b"}}}`, i, i))
			}),
			objects("pods", 5000, func(i int) string {
				return named("evil", fmt.Sprint("p-", i), `,"resourceVersion":"1","labels":{"a":"b"}`, fmt.Sprintf(`,"status":{"phase":"Running","podIP":"10.0.%d.%d","conditions":[{"type":"Ready","status":"True"}]}`, i/250, i%250+1))
			}),
		)},
		{finding: "D4", name: "900 Services that each select 4,000 WorkloadEntries", upstream: discovering, limits: tight, more: 1 << 30, once: true, adds: `evil/(synthetic-)?e-\d+`, api: anyOf(
			objects("services", 900, func(i int) string {
				return named("evil", fmt.Sprint("e-", i), `,"resourceVersion":"1"`, `,"spec":{"clusterIP":"10.96.0.1","selector":{"a":"b"},"ports":[{"name":"http","port":80}]}`)
			}),
			objects("workloadentries", 4000, func(i int) string {
				return named("evil", fmt.Sprint("e-", i), `,"resourceVersion":"1"`, fmt.Sprintf(`,"spec":{"address":"10.0.%d.%d","labels":{"a":"b"}}`, i/250, i%250+1))
			}),
		)},
		{finding: "D4", name: "500 MB of versions of watched changes", limits: tight, told: `west-0.*(limits.maxBytes|bytes: want)`, api: events("serviceentries", n, func(i int) string {
			return `{"type":"ADDED","object":` + bare(i) + "}"
		})},
		{finding: "D4", name: "Secrets of 500 MB of versions", clusters: secretsOf, told: `found`, once: true, hub: objects("secrets", 64, func(i int) string {
			return named("evil", fmt.Sprint("s-", i), strings.Replace(version(i), `:"`, `:"`+strings.Repeat("x", 5<<20), 1), "")
		}), run: strikeHub},
		{finding: "D4", name: "an object of 8 MB in each kind, all at once", told: `west-0.*(silent|more than 64 KiB)`, api: everyKind(), seldom: true},

		{finding: "D7", name: "six million labels of namespaces", limits: "maxBytes: 67108864", section: selecting, told: `west-0.*more than \d+ (values|KiB)`, api: objects("namespaces", 10, func(i int) string {
			return named("", fmt.Sprint("ns-", i), `,"resourceVersion":"1","labels":{"a":""`+keys(0, 600_000, `,"%06d":""`)+`}`, "")
		})},
		{finding: "D7", name: "six million labels of ServiceEntries", limits: "maxBytes: 67108864", told: `west-0.*more than \d+ (values|KiB)`, api: objects("serviceentries", 10, func(i int) string {
			return in(i, `,"resourceVersion":"1","labels":{"a":""`+keys(0, 600_000, `,"%06d":""`)+`}`)
		})},

		{finding: "D9", name: "watched changes of 500 MB of namespaces that are not selected", limits: tight, section: selecting, told: `west-0`, api: events("serviceentries", n, func(i int) string {
			return `{"type":"ADDED","object":` + named(strings.TrimSuffix(version(i)[20:], `"`), "e", `,"resourceVersion":"201"`, "") + "}"
		})},
		{finding: "D9", name: "watched changes of 800,000 namespaces that are not selected", seldom: true, once: true, limits: tight, section: selecting, told: `west-0`, api: events("serviceentries", 800_000, func(i int) string {
			return `{"type":"ADDED","object":` + named(fmt.Sprintf("n%0252d", i), "e", `,"resourceVersion":"201"`, "") + "}"
		})},

		{finding: "D13", name: "a list of empty pages without end", told: `west-0.*more than \d+ pages`, api: pages("")},
		{finding: "D13", name: "a list that drips for an hour", api: drip("serviceentries"), run: begin},
	}
}

// decoded are the attacks of objects that are larger decoded than encoded.
func decoded() []*attack {
	const list = 2_600_000 // elements of two bytes and a comma
	wide := func(plural, field, element string, n int) evil {
		text := `,"spec":{"` + field + `":[` + strings.Repeat(element+",", n) + element + `]}`
		return objects(plural, 1, func(i int) string { return named("evil", fmt.Sprint("e-", i), `,"resourceVersion":"1"`, text) })
	}
	return []*attack{
		{finding: "D7", name: "a ServiceEntry of 2.6 million empty endpoints", short: true, told: `west-0.*more than \d+ (values|KiB)`, api: wide("serviceentries", "endpoints", "{}", list)},
		{finding: "D7", name: "an untyped object of 3.9 million numbers", told: `west-0.*more than \d+ (values|KiB)`, section: "kinds: [example.com/Widget]", api: wide("widgets", "a", "1", 3_900_000)},
		{finding: "D7", name: "a Service of 2.6 million empty ports", told: `west-0.*more than \d+ (values|KiB)`, section: "ingress: {mode: strict}", api: wide("services", "ports", "{}", list)},
		{finding: "D7", name: "an error of 2.6 million causes that ends a watch", told: `west-0.*ServiceEntry state=failing`, api: events("serviceentries", 1, func(int) string {
			return `{"type":"ERROR","object":{"kind":"Status","code":500,"details":{"causes":[` + strings.Repeat("{},", list) + `{}]}}}`
		})},
		{finding: "D8", name: "a ServiceEntry of 1 MB with 64 unknown fields", adds: `evil/e-0`, told: `west-0.*unknown|fields left out`, api: objects("serviceentries", 1, func(int) string {
			return named("evil", "e-0", `,"resourceVersion":"1"`, `,"spec":{"hosts":["`+strings.Repeat(`a.x","`, 140_000)+`b.x"]`+keys(0, 64, `,"unknown%d":1`)+`}`)
		})},
		{finding: "D8", name: "a ServiceEntry of 600,000 unknown fields", told: `west-0.*more than`, api: objects("serviceentries", 1, func(int) string {
			return named("evil", "e-0", `,"resourceVersion":"1"`, `,"spec":{"a":1`+keys(0, 600_000, `,"%06d":1`)+`}`)
		})},
	}
}

// keys returns n texts, each of a number from first on.
func keys(first, n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, first+i)
	}
	return b.String()
}

// largeUID strikes, and looks whether the UID is shown or kept.
func largeUID(s *stage, n int) {
	strike(s, n)
	_, shown := s.get("/debug/upstreams")
	if len(shown) > 64<<10*max(1, n/4) || strings.Contains(shown, "pwned") {
		s.Errorf("%d bytes are shown: %.300q", len(shown), shown)
	}
	if size := s.kept(); size > 1<<20 {
		s.Errorf("%d bytes are kept", size)
	}
}

// begin begins an attack that does not end, and waits until the relay asks for what does not end.
func begin(s *stage, _ int) {
	close(s.begun)
	for i, a := range s.apis {
		s.await(fmt.Sprintf("the attack of west-%d", i), func() bool { return a.Asked("/serviceentries?") > 0 })
	}
}

// strikeHub begins the attack of the API server in which clusters are found.
func strikeHub(s *stage, n int) {
	strike(s, n)
	s.await("the attack of the hub", func() bool { return s.hub.done.Load() > 0 })
}

// pages makes an attack of pages that have the same items, and always one more after them.
func pages(items string) evil {
	return func(w http.ResponseWriter, r *http.Request) bool {
		switch askedOf(r, "serviceentries") {
		case askedStream:
			fakekube.Fail(w, http.StatusUnprocessableEntity, "Invalid")
			return true
		case askedList:
			n, _ := strconv.Atoi(r.URL.Query().Get("continue"))
			send(w, fmt.Sprintf(`{"kind":"List","metadata":{"resourceVersion":"200","continue":"%d"},"items":[%s]}`, n+1, items))
			return true
		}
		return false
	}
}
