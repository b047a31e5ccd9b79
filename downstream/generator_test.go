package downstream

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meshrelay/downstream/snapshot"
	"meshrelay/downstream/subscription"
	"meshrelay/downstream/views"
	"meshrelay/mirror"
)

const rosterV1 = "test.example/v1/Roster"

// rosters makes a type whose items are made of many resources each: the names of the
// ServiceEntries of a namespace.
type rosters struct{}

var typeRoster = subscription.Type{Group: "test.example", Kind: "Roster", Order: 1000, Fixed: true}

func (rosters) Type(typeURL string) (subscription.Type, bool) {
	return typeRoster, typeURL == rosterV1
}

func (rosters) Types() []subscription.Type { return []subscription.Type{typeRoster} }

func (rosters) Affected(key mirror.Key, add func(subscription.Type, Ref)) {
	if key.Kind == kindSE {
		add(typeRoster, Ref{Name: key.Namespace})
	}
}

func (rosters) Item(from Reader, _ subscription.Type, ref Ref) snapshot.Item {
	var names []string
	for _, key := range from.Keys(kindSE) {
		if key.Namespace == ref.Name && from.Get(key) != nil {
			names = append(names, key.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return newRoster(ref.Name, strings.Join(names, " "))
}

// roster is an item.
type roster struct {
	name         string
	sum          [16]byte
	frame, entry []byte
}

func newRoster(name, names string) *roster {
	sum := sha256.Sum256([]byte(name + "\x00" + names))
	r := &roster{name: name, sum: [16]byte(sum[:16])}
	body := must(anypb.New(wrapperspb.String(names)))
	field := func(num protowire.Number, m proto.Message) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), must(proto.Marshal(m)))
	}
	r.frame = field(2, body)
	r.entry = field(2, &discoveryv3.Resource{Name: name, Version: r.Version(), Resource: body})
	return r
}

func (r *roster) FullName() string   { return r.name }
func (r *roster) Digest() [16]byte   { return r.sum }
func (r *roster) Version() string    { return hex.EncodeToString(r.sum[:]) }
func (r *roster) Frame() []byte      { return r.frame }
func (r *roster) DeltaEntry() []byte { return r.entry }

func (r *roster) AppendShort(b []byte) []byte { return append(b, r.frame...) }

// rosterNames returns what a delta response has: for each namespace the names in it.
func rosterNames(t *testing.T, resp *discoveryv3.DeltaDiscoveryResponse) string {
	t.Helper()
	var out []string
	for _, res := range resp.Resources {
		s := &wrapperspb.StringValue{}
		if err := res.Resource.UnmarshalTo(s); err != nil {
			t.Fatal(err)
		}
		out = append(out, res.Name+": "+s.Value)
	}
	for _, name := range resp.RemovedResources {
		out = append(out, "-"+name)
	}
	return strings.Join(out, ", ")
}

// TestAnotherGeneratorServesItsTypes: in both protocols, as views show what it is made of, and
// beside the types of MCP-over-xDS.
func TestAnotherGeneratorServesItsTypes(t *testing.T) {
	r := startRelay(t, true, func(c *Config, d *Deps) {
		d.Generators = []Generator{rosters{}}
		c.Views = []views.View{namespaces("shop", "shop-*", "shop"), {Name: "all", Default: true}}
	})
	r.put(se("shop", "a", "a"), se("shop", "b", "b"), se("till", "c", "c"), dr("bank", "d", "d"))
	all, shop := r.deltaBy("all", rosterV1), r.deltaBy("shop-1", rosterV1)
	if got := rosterNames(t, all.next()); got != "shop: a b, till: c" {
		t.Errorf("at first %q", got)
	}
	if got := rosterNames(t, shop.next()); got != "shop: a b" {
		t.Errorf("a view at first %q", got)
	}
	s := r.sotw()
	s.send(subscribe(rosterV1))
	if got := s.next(); len(got.Resources) != 2 || got.TypeUrl != rosterV1 {
		t.Errorf("state of the world: %v", got)
	}
	r.put(se("shop", "e", "e"))
	for _, d := range []*deltaStream{all, shop} {
		if got := rosterNames(t, d.next()); got != "shop: a b e" {
			t.Errorf("a resource more: %q", got)
		}
	}
	r.remove(se("till", "c", ""))
	if got := rosterNames(t, all.next()); got != "-till" {
		t.Errorf("a namespace less: %q", got)
	}
	own := r.delta()
	own.send(&discoveryv3.DeltaDiscoveryRequest{Node: node(), TypeUrl: seV1})
	if got := deltaNames(own.next()); got != "shop/a shop/b shop/e" {
		t.Errorf("ServiceEntries beside it: %q", got)
	}
	if n := r.server.metrics.of(typeRoster); n == r.server.metrics.other {
		t.Error("the type has no metrics of its own")
	}
}
