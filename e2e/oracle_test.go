package e2e

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The oracle: what an istiod makes for Envoys of configs that came through relays is what one
// makes of them that reads them from files. docs/oracle.md tells how it works.

// fixedProxies ask for the fixed set: workloads of both shops, by the addresses of their
// endpoints and the labels that policies select; somebody else; and two gateways.
var fixedProxies = []proxy{
	{name: "productpage", namespace: "bookinfo", address: "10.1.1.1", labels: map[string]string{"app": "productpage", "version": "v1"}},
	{name: "reviews-v2", namespace: "bookinfo", address: "10.1.3.2", labels: map[string]string{"app": "reviews", "version": "v2"}},
	{name: "ratings", namespace: "bookinfo", address: "10.1.4.1", labels: map[string]string{"app": "ratings", "version": "v1"}},
	{name: "mysqldb", namespace: "bookinfo", address: "10.1.8.1", labels: map[string]string{"app": "mysqldb", "version": "v1"}},
	{name: "productpage", namespace: "canary", address: "10.2.1.1", labels: map[string]string{"app": "productpage", "version": "v1"}},
	{name: "reviews-v1", namespace: "canary", address: "10.2.3.1", labels: map[string]string{"app": "reviews", "version": "v1"}},
	{name: "ratings", namespace: "canary", address: "10.2.4.1", labels: map[string]string{"app": "ratings", "version": "v1"}},
	{name: "client", namespace: "default", address: "10.3.0.1"},
	ingressGateway,
	{kind: "router", name: "gateway", namespace: "canary", address: "10.4.0.2", labels: map[string]string{"istio": "ingressgateway"}},
}

var ingressGateway = proxy{
	kind: "router", name: "ingressgateway", namespace: "istio-system", address: "10.4.0.1",
	labels: map[string]string{"istio": "ingressgateway"},
}

// TestOracleFixedSet_C23 compares for configs of every kind that istiods mirror.
func TestOracleFixedSet_C23(t *testing.T) {
	t.Parallel()
	set := readManifests(t, "testdata/oracle")
	for _, kind := range kindsOf1_23 {
		if !slices.ContainsFunc(set, func(m manifest) bool { return m.Kind == kind }) {
			t.Errorf("the set has no %s", kind)
		}
	}
	o := newOracle(t, fixedProxies...).throughOneRelayAndTwo()
	o.same("fixed", set)
	if !allNewest() {
		o.saw("envoy.extensions.filters.http.wasm.v3.Wasm")
	}
	o.saw(slices.Concat(fromRules, fromExtensions)...)
}

// TestBookinfosRoutesNameClustersThatExist_C23: a route to a cluster that does not exist is
// a 503.
func TestBookinfosRoutesNameClustersThatExist_C23(t *testing.T) {
	t.Parallel()
	proxies := []proxy{fixedProxies[0], fixedProxies[1], ingressGateway}
	o := newOracle(t, proxies...).throughOneRelayAndTwo()
	set := slices.DeleteFunc(readManifests(t, "testdata/oracle"), func(m manifest) bool { return m.Metadata.Namespace != "bookinfo" })
	if err := o.give("bookinfo", set); err != nil {
		t.Fatal(err)
	}
	named := map[string][]string{
		proxies[0].String(): {
			"outbound|9080|v1|productpage.bookinfo.svc.cluster.local",
			"outbound|9080|v1|details.bookinfo.svc.cluster.local",
			"outbound|9080|v2|reviews.bookinfo.svc.cluster.local",
			"outbound|9080|v3|reviews.bookinfo.svc.cluster.local",
			"outbound|9080|v1|ratings.bookinfo.svc.cluster.local",
			"outbound|9080|v2-mysql-vm|ratings.bookinfo.svc.cluster.local",
			"outbound|3306|v1|mysqldb.bookinfo.svc.cluster.local",
			"outbound|443||www.googleapis.com",
		},
		proxies[1].String(): {"outbound|9080|v1|ratings.bookinfo.svc.cluster.local"},
		proxies[2].String(): {"outbound|9080||productpage.bookinfo.svc.cluster.local"},
	}
	for _, i := range o.istiods() {
		for proxy, config := range o.everything(i) {
			have := namedClusters(config)
			for _, cluster := range named[proxy] {
				if !have[cluster] {
					t.Errorf("istiod %s gives %s no route to %s: there are %q", i.name, proxy, cluster, slices.Sorted(maps.Keys(have)))
				}
			}
			for cluster := range have {
				// For the sake of googleapis an istiod routes all hosts on port 80, too, where
				// bookinfo has no services.
				if config[cdsType][cluster] == nil && !strings.HasPrefix(cluster, "outbound|80|") {
					t.Errorf("istiod %s gives %s a route to %s, and no such cluster", i.name, proxy, cluster)
				}
			}
		}
	}
}

// TestOracleFindsWhatIsMissing: the oracle can fail. One relay leaves short hosts as they
// are, the other leaves out a DestinationRule.
func TestOracleFindsWhatIsMissing(t *testing.T) {
	t.Parallel()
	const rule = "networking.istio.io/DestinationRule bookinfo/reviews"
	o := newOracle(t, fixedProxies...)
	o.feed("short hosts kept", oracleRelay(t, "keeps", o.direct.grpc, "rewrite: {shortHosts: keep}"))
	o.feed("a rule left out", oracleRelay(t, "omits", o.direct.grpc,
		`import: {expression: '!(kind == "DestinationRule" && namespace == "bookinfo" && name == "reviews")'}`), rule)
	if err := o.give("fixed", readManifests(t, "testdata/oracle")); err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{
		"short hosts kept": {
			"sidecar productpage.bookinfo: RouteConfiguration 9080: (-", // bookinfo's routes
			"sidecar ratings.canary: Cluster inbound|9080||: (-",        // what a DestinationRule sets
			"router ingressgateway.istio-system: RouteConfiguration http.8080: (-",
		},
		"a rule left out": {
			"sidecar productpage.bookinfo: Cluster outbound|9080|v2|reviews.bookinfo.svc.cluster.local: the fed istiod has none",
			"sidecar productpage.bookinfo: ClusterLoadAssignment outbound|9080|v2|reviews.bookinfo.svc.cluster.local: the fed istiod has none",
			"sidecar productpage.bookinfo: Cluster outbound|9080||reviews.bookinfo.svc.cluster.local: (-",
		},
	}
	if _, err := o.ask(func(different []verdict) error {
		found := map[string]int{}
		for _, v := range different {
			for _, beginning := range want[v.way] {
				if slices.ContainsFunc(v.mismatches, func(m mismatch) bool { return strings.HasPrefix(m.String(), beginning) }) {
					found[v.way]++
				}
			}
		}
		for way, all := range want {
			if found[way] < len(all) {
				return fmt.Errorf("%s: it finds %d of %q, and has %s", way, found[way], all, names(different))
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// TestOracleRandomSets_C23 runs ORACLE_SETS random sets, ten if it is not set: those of the
// first ten seeds, and from then on of seeds that differ each time. ORACLE_SEED names a seed
// to begin with instead, so that ORACLE_SETS=1 ORACLE_SEED=N runs one set again.
func TestOracleRandomSets_C23(t *testing.T) {
	t.Parallel()
	seeds := oracleSeeds(t)
	o := newOracle(t).throughOneRelayAndTwo()
	for _, seed := range seeds {
		start := time.Now()
		set := randomSet(seed)
		o.proxies = worldProxies(seed)
		same := o.same(fmt.Sprintf("seed-%d", seed), set)
		t.Logf("seed %d: %d configs, same: %v, %v", seed, len(set), same, time.Since(start).Round(time.Millisecond))
	}
	if len(seeds) >= fixedSeeds {
		o.saw(fromRules...)
	}
}

// fixedSeeds is how many seeds are the same each time.
const fixedSeeds = 10

// oracleSeeds returns the seeds to run.
func oracleSeeds(t *testing.T) (seeds []int) {
	t.Helper()
	number := func(name string, otherwise int) int {
		v := os.Getenv(name)
		if v == "" {
			return otherwise
		}
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 {
			t.Fatalf("%s=%s is no number", name, v)
		}
		return n
	}
	n := number("ORACLE_SETS", fixedSeeds)
	first := number("ORACLE_SEED", -1)
	random := 1000 + rand.IntN(1_000_000_000)
	for i := range n {
		switch {
		case first >= 0:
			seeds = append(seeds, first+i)
		case i < fixedSeeds:
			seeds = append(seeds, i)
		default:
			seeds = append(seeds, random+i)
		}
	}
	return seeds
}
