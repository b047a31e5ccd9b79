package records

import (
	"iter"
	"log/slog"
	"testing"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/config"
	"meshrelay/events"
	"meshrelay/internal/testing/fakexds"
)

type nobody struct{}

func (nobody) Note(slog.Level, string, ...any) {}
func (nobody) Tell(events.Event)               {}

// update is an update of the ServiceEntries of these hosts, by name.
func update(t *testing.T, complete bool, hosts map[string]string) *Update {
	t.Helper()
	scope, err := TypeScope("networking.istio.io/v1/ServiceEntry")
	if err != nil {
		t.Fatal(err)
	}
	return &Update{Scope: scope, Complete: complete, Room: len(hosts), Elements: func(int, Known) iter.Seq[Element] {
		return func(yield func(Element) bool) {
			for name, host := range hosts {
				raw, err := proto.Marshal(fakexds.MCP(name, &networking.ServiceEntry{Hosts: []string{host}}).Any)
				if err != nil {
					t.Error(err)
				}
				if !yield(Element{Name: []byte(name), Raw: raw}) {
					return
				}
			}
		}
	}}
}

// TestAScopeThatIsToldOnce_KeepsNoMarks: streams to a relay have one complete answer, then what changes.
func TestAScopeThatIsToldOnce_KeepsNoMarks(t *testing.T) {
	rs := New(config.Upstream{Name: "east"}, imports(t, config.Upstream{}, config.Provenance{}), nobody{})
	for range 3 {
		all := update(t, true, map[string]string{"shop/a": "one.example", "shop/b": "one.example"})
		rs.Open([]Scope{all.Scope})
		rs.Take(all, false, &Result{})
		rs.Take(update(t, false, map[string]string{"shop/a": "two.example"}), false, &Result{})
		rs.Wants(func(Want) {})
	}
	if _, sc := rs.scope(update(t, true, nil).Scope); len(sc.byName) != 2 || sc.marked > 0 || sc.groups != nil {
		t.Errorf("%d records, %d marks in %d groups", len(sc.byName), sc.marked, len(sc.groups))
	}
}
