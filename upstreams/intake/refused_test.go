package intake

import (
	"testing"

	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/config"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/upstreams/intake/records"
)

// TestANameThatOneVersionRefusesIsNotGoneWhenAnotherLosesIt_C1: the source has it, so its last good content stays.
func TestANameThatOneVersionRefusesIsNotGoneWhenAnotherLosesIt_C1(t *testing.T) {
	m := newMachine(t, true, config.Provenance{})
	const older = "networking.istio.io/v1beta1/ServiceEntry"
	m.open(entryURL, older)
	of := func(url string, all ...fakexds.Resource) records.Update {
		u := m.update(true, all...)
		u.Scope, _ = records.TypeScope(url)
		return u
	}
	bad := fakexds.MCP("shop/b", &networking.ServiceEntry{}, func(r *mcp.Resource) { r.Body.Value = []byte{0xff} })
	m.step(Received{Updates: []records.Update{of(older, entry("shop/b", "b"), entry("shop/c", "c"))}})
	m.step(Received{Updates: []records.Update{of(entryURL, bad)}})
	m.step(Received{Updates: []records.Update{of(older, entry("shop/c", "c"))}})
	m.step(EndGraces{})
	m.holds("shop/b=b", "shop/c=c")
	m.step(Received{Updates: []records.Update{of(entryURL)}})
	m.step(EndGraces{})
	m.holds("shop/c=c")
}
