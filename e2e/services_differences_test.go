package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestARemoteSecretAndTheRelayDiffer has the rows of the table in docs/services.md that are about consumers.
func TestARemoteSecretAndTheRelayDiffer(t *testing.T) {
	t.Parallel()
	at := func(port int, service string) string {
		return fmt.Sprintf("outbound|%d||%s.svc.cluster.local", port, service)
	}
	find := func(name string) service {
		n := slices.IndexFunc(clusterIPServices, func(s service) bool { return s.name == name })
		return clusterIPServices[n]
	}
	c := newConsumers(t, func(east, west *cluster) {
		for _, s := range append([]service{headless, twoFamilies, find("unnamed"), find("several-ports")}, clusterLocalServices...) {
			east.put(s)
		}
		west.put(service{namespace: "shop", name: "unnamed", ports: []worldPort{{number: 80, at: 8080}},
			slices: []slice{{pods: []instance{{name: "unnamed-w", ip: "10.3.1.1"}}}}})
	}, subsetsOf("shop", "several-ports"))
	secret, relayed := c.proxies(proxy{})
	differ := func(name, cluster string, bySecret, byRelay []string) {
		t.Run(name, func(t *testing.T) {
			secret.waitEndpoints(cluster, bySecret...)
			relayed.waitEndpoints(cluster, byRelay...)
		})
	}
	several := at(80, "several-ports.shop")
	differ("UnitingAPortWithoutAName", at(80, "unnamed.shop"), []string{"10.1.2.1:8080", "10.3.1.1:8080"}, []string{"10.3.1.1:8080"})
	differ("APodOfTwoFamilies", at(80, "two-families.shop"), []string{"10.1.21.1:8080", "10.1.21.2:8080", "[fd00:1::1]:8080", "[fd00:1::2]:8080"}, []string{"10.1.21.1:8080", "10.1.21.2:8080"})
	differ("SubsetsByClusterID", "outbound|80|in-east|several-ports.shop.svc.cluster.local", []string{"10.1.0.1:8080", "10.1.0.2:8080", "10.1.0.3:8080", "10.1.0.4:8080"}, nil)
	differ("SubsetsByNode", "outbound|80|on-node-a|several-ports.shop.svc.cluster.local", []string{"10.1.0.1:8080"}, nil)

	t.Run("HeadlessServices", func(t *testing.T) {
		for e, want := range map[*envoy]string{secret: "ORIGINAL_DST", relayed: "EDS"} {
			e.wait("the type of the cluster", func() error {
				if c := e.cluster(at(80, "headless.shop")); c == nil || c.GetType().String() != want {
					return fmt.Errorf("it is %v, want %s", c, want)
				}
				return nil
			})
		}
		relayed.waitEndpoints(at(80, "headless.shop"), "10.1.20.1:80", "10.1.20.2:80")
	})

	t.Run("ClusterLocalServices", func(t *testing.T) {
		for _, name := range []string{at(80, "dns.kube-system"), at(80, "of-the-node.shop")} {
			secret.waitEndpoints(name) // it is known, and of no use
			if is := relayed.describe(name); is != "unknown" {
				t.Errorf("%s is %s", name, is)
			}
		}
	})

	t.Run("NamesInTelemetry", func(t *testing.T) {
		for e, want := range map[*envoy]string{secret: "several-1;shop;several-ports;v1;east", relayed: ";;several-ports;v1;west"} {
			have, _ := e.details(several)
			if len(have) == 0 || have[0].workload != want {
				t.Errorf("the workload is %+v, want %s", have, want)
			}
		}
	})

	t.Run("AccountsOfPodsThatAreNotReady", func(t *testing.T) {
		s := find("several-ports")
		pods := slices.Clone(s.slices[0].pods)
		pods[2].unready = true
		s.slices = []slice{{pods: pods}}
		c.east.put(s)
		for e, want := range map[*envoy]bool{secret: true, relayed: false} {
			e.wait("the accounts that are accepted", func() error {
				if is := e.describe(several); strings.Contains(is, "10.1.0.3") || strings.Contains(is, "sa/other") != want {
					return fmt.Errorf("it is %s", is)
				}
				return nil
			})
		}
		c.east.put(find("several-ports"))
		relayed.waitEndpoints(several, "10.1.0.1:8080", "10.1.0.2:8080", "10.1.0.3:8080", "10.1.0.4:8080")
	})

	t.Run("TheRegionOfANodeThatMoves", func(t *testing.T) {
		c.east.node("node-c", "west", "c", "rack-1")
		relayed.wait("the endpoint moves", func() error {
			if is := relayed.describe(several); !strings.Contains(is, "10.1.0.3:8080 in west/c/rack-1") {
				return fmt.Errorf("it is %s", is)
			}
			return nil
		})
		if is := secret.describe(several); !strings.Contains(is, "10.1.0.3:8080 in south/c/rack-1") {
			t.Errorf("with a remote secret it is %s", is)
		}
	})

	t.Run("APodThatEndsAndIsPublished", func(t *testing.T) {
		s := find("published")
		s.slices = []slice{{pods: []instance{{name: "published-1", ip: "10.1.5.1", terminating: true, published: true}, {name: "published-2", ip: "10.1.5.2"}}}}
		c.east.put(s)
		secret.waitEndpoints(at(80, "published.shop"), "10.1.5.1:8080", "10.1.5.2:8080")
		relayed.waitEndpoints(at(80, "published.shop"), "10.1.5.2:8080")
	})
}

// TestEachDifferenceOfServicesHasATest: the tests that the tables of docs/services.md name exist.
func TestEachDifferenceOfServicesHasATest(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/services.md")
	if err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob("services_*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	code := ""
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		code += string(b)
	}
	_, section, _ := strings.Cut(string(page), "## Beside an istiod\n")
	section, _, _ = strings.Cut(section, "\n## ")
	rows := 0
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if len(cells) != 3 || !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| ---") || strings.Contains(line, "| shown by |") {
			continue
		}
		rows++
		names := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[2], -1)
		if len(names) == 0 || strings.TrimSpace(cells[1]) == "" {
			t.Errorf("the row has no test, or no reason: %s", line)
		}
		for _, m := range names {
			if !strings.Contains(code, `"`+m[1]+`"`) && !strings.Contains(code, "func "+m[1]+"(") {
				t.Errorf("there is no test %s", m[1])
			}
		}
	}
	if rows < 15 {
		t.Errorf("the section has %d rows", rows)
	}
}
