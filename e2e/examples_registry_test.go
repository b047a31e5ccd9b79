package e2e

import (
	"net/http"
	"testing"
)

// TestExampleRegistry runs examples/registry: a Nacos, a relay, and an istiod that has config of its own
// for a service of the registry.
func TestExampleRegistry(t *testing.T) {
	t.Parallel()
	x := newExample(t, "registry")
	nacos := newRegistry(t, freePort(t), x.address("127.0.0.1:18848"))
	nacos.put("Orders", "10.1.0.1", `metadata={"version":"v1"}`)
	nacos.put("Orders", "10.1.0.2", `metadata={"version":"v2"}`)
	nacos.put("cn.example.Cards:1.0", "10.1.0.9", "groupName=pay")
	r := x.relay("relay.yaml").start().ready()

	t.Run("README", func(t *testing.T) {
		x.shows(t, "validate")
		x.shows(t, "status")
		x.showsAt(t, "get", 0)
		x.shows(t, "explain")
	})

	const subset, all = "outbound|8080|v2|Orders.DEFAULT-GROUP.public.nacos", "outbound|8080||Orders.DEFAULT-GROUP.public.nacos"
	mesh := x.istiodAt("mesh", freePort(t), r.xds)
	x.give(mesh, "mesh")
	mesh.start().ready()
	e := dial(t, mesh.grpc).envoy(proxy{namespace: "shop"})

	t.Run("TheMeshHasRulesForServicesOfTheRegistry", func(t *testing.T) {
		e.waitEndpoints(all, "10.1.0.1:8080", "10.1.0.2:8080")
		e.waitEndpoints(subset, "10.1.0.2:8080")
	})

	t.Run("ARestartWithoutNacosLosesNothing", func(t *testing.T) {
		nacos.kill()
		r.terminate()
		r.start().ready()
		second := x.istiodAt("second", freePort(t), r.xds)
		second.start().ready()
		dial(t, second.grpc).envoy(proxy{namespace: "shop"}).waitEndpoints(all, "10.1.0.1:8080", "10.1.0.2:8080")
	})

	t.Run("AServiceWithoutInstancesHasNoEndpoints", func(t *testing.T) {
		nacos = newRegistry(t, nacos.http, nacos.xds)
		nacos.put("cn.example.Cards:1.0", "10.1.0.9", "groupName=pay")
		x.showsAt(t, "get", 1)
		e.waitEndpoints(all)
		nacos.put("Orders", "10.1.0.3", `metadata={"version":"v2"}`)
		e.waitEndpoints(subset, "10.1.0.3:8080")
		nacos.instance(http.MethodDelete, "Orders", "10.1.0.3")
		e.waitEndpoints(all)
	})
}
