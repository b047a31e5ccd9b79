package xds

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"
	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/config"
	"meshrelay/events"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/mirror"
	"meshrelay/upstreams"
)

// nameless is an MCP resource whose element has no name on a delta stream.
func nameless(name string) fakexds.Resource {
	r := entry(name)
	r.Name = ""
	return r
}

// bare is an element with a name and without an envelope.
func bare(name string) fakexds.Resource {
	return fakexds.Bare(name, &networking.ServiceEntry{Hosts: []string{name}})
}

func deltaOnly(u *config.Upstream) { u.Source.(*Config).Protocol = "delta" }

// noted returns the texts of all events.
func (p *place) noted() string {
	var b strings.Builder
	for _, e := range p.journal.Read(events.Query{}).Events {
		b.WriteString(e.Text + ": " + e.Reason + "\n")
	}
	return b.String()
}

// changes returns the changes of resources that clients are sent.
func (p *place) changes() []events.Event {
	return p.journal.Read(events.Query{Filter: events.Filter{Types: []events.Type{events.Changed}}}).Events
}

// TestDeltaWithoutNamesOrEnvelopesIsLeftForSotW_C14, and takes nothing away.
func TestDeltaWithoutNamesOrEnvelopesIsLeftForSotW_C14(t *testing.T) {
	for name, tc := range map[string]struct {
		elements []fakexds.Resource
		why      string // empty: delta stays
	}{
		"no names":        {[]fakexds.Resource{nameless("shop/a"), nameless("shop/b")}, "none has a name"},
		"no envelopes":    {[]fakexds.Resource{bare("shop/a"), bare("shop/b")}, "none has the type istio.mcp.v1alpha1.Resource"},
		"one bad of two":  {[]fakexds.Resource{nameless("shop/a"), entry("shop/b")}, ""},
		"one bare of two": {[]fakexds.Resource{bare("shop/a"), entry("shop/b")}, ""},
		// The MeshConfig has neither, as that of an istiod.
		"no elements": {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlace(t)
				p.begin(nil)
				p.wants(p.after(time.Minute), upstreams.StateSynced, 0, 4)
				p.halt()
				p.down()
				p.up()
				p.server.Set(entryURL, tc.elements...)
				p.begin(deltaOnly)
				if tc.why == "" {
					if st := p.after(time.Minute); st.Protocol != "delta" || st.State != upstreams.StateSynced {
						t.Errorf("%s with %s: %s", st.State, st.Protocol, st.LastError)
					}
					return
				}
				p.after(time.Minute) // SotW has the same
				if got, want := p.noted(), "delta is left for SotW: of 2 resources in an answer for "+entryURL+", "+tc.why; !strings.Contains(got, want) {
					t.Errorf("the journal has %q, want %q", got, want)
				}
				p.server.Set(entryURL, entry("shop/a"), entry("shop/b")) // as istiods have them
				st := p.after(time.Minute)
				p.wants(st, upstreams.StateSynced, 0, 4)
				if st.Protocol != "sotw" || st.LastError != "" {
					t.Errorf("%s, last error %q", st.Protocol, st.LastError)
				}
				if got := p.noted(); strings.Contains(got, "delet") {
					t.Errorf("the journal has %q", got)
				}
			})
		})
	}
}

// TestLargeElementsAreJudgedByTheirHeads_C14: they are not copied.
func TestLargeElementsAreJudgedByTheirHeads_C14(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlace(t)
		p.server.Set(entryURL, fakexds.MCP("shop/a", &networking.ServiceEntry{Hosts: []string{"a"}}, func(m *mcp.Resource) {
			m.Metadata.Annotations = map[string]string{"note": strings.Repeat("n", 200<<10)}
		}))
		p.begin(func(u *config.Upstream) { deltaOnly(u); u.Limits.MaxResourceBytes = 1 << 20 })
		st := p.after(time.Minute)
		if p.wants(st, upstreams.StateSynced, 0, 3); st.Protocol != "delta" {
			t.Errorf("%s: %s", st.Protocol, st.LastError)
		}
	})
}

// TestContentDecidesWhatHasChanged_C5_C10: a server may give another content the same version, in the metadata, the
// element and the answer, and the same content another one.
func TestContentDecidesWhatHasChanged_C5_C10(t *testing.T) {
	for _, protocol := range []string{"sotw", "delta"} {
		t.Run(protocol, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlace(t)
				versioned := func(host, version string) fakexds.Resource {
					return fakexds.MCP("shop/a", &networking.ServiceEntry{Hosts: []string{host}}, func(m *mcp.Resource) { m.Metadata.Version = version })
				}
				p.server.Set(entryURL, versioned("one.example", "7"))
				p.begin(func(u *config.Upstream) { u.Source.(*Config).Protocol = protocol })
				p.wants(p.after(time.Minute), upstreams.StateSynced, 0, 3)
				nonce := 0
				send := func(host, metadata, element, answer string) (changed int) {
					before := len(p.changes())
					r := versioned(host, metadata)
					nonce++
					if protocol == "sotw" {
						p.server.Send(&discoveryv3.DiscoveryResponse{TypeUrl: entryURL, Nonce: fmt.Sprint("n", nonce), VersionInfo: answer, Resources: []*anypb.Any{r.Any}})
					} else {
						p.server.Send(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: entryURL, Nonce: fmt.Sprint("n", nonce), SystemVersionInfo: answer,
							Resources: []*discoveryv3.Resource{{Name: r.Name, Version: element, Resource: r.Any}}})
					}
					p.after(time.Second)
					return len(p.changes()) - before
				}
				for i, step := range []struct {
					host, metadata, element, answer string
					changed                         int
				}{
					{"two.example", "7", "e", "v", 1},   // the metadata's version is repeated
					{"three.example", "7", "e", "v", 1}, // all versions are repeated
					{"three.example", "8", "e", "v", 0},
					{"three.example", "8", "f", "w", 0},
					{"three.example", "", "", "", 0},
					{"two.example", "7", "e", "v", 1}, // as long ago
				} {
					if got := send(step.host, step.metadata, step.element, step.answer); got != step.changed {
						t.Errorf("step %d: %d changes are pushed, want %d", i+1, got, step.changed)
					}
					r := p.m.Trace(mirror.Key{Kind: mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}, Namespace: "shop", Name: "a"})
					if len(r) != 1 || r[0].Resource == nil || !strings.Contains(string(r[0].Resource.BodyValue()), step.host) {
						t.Errorf("step %d: %s is not served", i+1, step.host)
					}
				}
			})
		})
	}
}
