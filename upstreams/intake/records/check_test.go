package records

import (
	"fmt"
	"hash/maphash"
	"iter"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/config"
	"meshrelay/federation"
	"meshrelay/federation/services"
	"meshrelay/internal/testing/fakexds"
)

// obey serves all that the records want, and demands that what is counted is what is there.
func obey(t *testing.T, rs *Records, letGo bool) {
	t.Helper()
	rs.Wants(func(w Want) {
		switch {
		case w.What == Resource:
			rs.Stored(w, w.Resource)
		case letGo && w.What != Addresses:
			rs.LetGo(w.Key)
		}
	})
	bytes, resources, formers := 0, 0, 0
	for p, rec := range rs.all() {
		bytes += recordBytes + len(p.name) + len(rec.version) + rec.size()
		if rec.leftOut != imported {
			bytes += len(rec.leftOut.Value().detail)
		}
		if rec.size() > 0 {
			resources++
		}
	}
	for _, f := range rs.former {
		formers += f.size()
	}
	if rs.bytes != bytes || rs.resources != resources || rs.formerBytes != formers {
		t.Fatalf("%d bytes of %d resources and %d of former ones are counted: want %d, %d and %d", rs.bytes, rs.resources, rs.formerBytes, bytes, resources, formers)
	}
	for name, sc := range rs.scopes {
		want, n := make(groups, len(sc.groups)), 0
		for _, rec := range sc.byName {
			if rec.mark != 0 {
				want.count(rec.mark, 1)
				n++
			}
		}
		if n != sc.marked || n > perGroup*len(want) || !slices.Equal(want, sc.groups) {
			t.Fatalf("scope %s: %d marks in %v are counted, and %d are there, in %v", name, sc.marked, sc.groups, n, want)
		}
	}
}

// raw is a ServiceEntry with two ports as an istiod makes it of a service.
func raw(t *testing.T, name, host string) []byte {
	t.Helper()
	b, err := proto.Marshal(fakexds.MCP(name, &networking.ServiceEntry{
		Hosts: []string{host}, Location: networking.ServiceEntry_MESH_INTERNAL, Resolution: networking.ServiceEntry_STATIC,
		Ports: []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}, {Number: 9901, Name: "admin", Protocol: "HTTP"}},
	}).Any)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestWhatIsCountedIsWhatIsThere over random updates: complete ones, with and without marks and parts, changes, limits, what
// is refused, and endpoints that give services siblings.
func TestWhatIsCountedIsWhatIsThere(t *testing.T) {
	scope, err := TypeScope("networking.istio.io/v1/ServiceEntry")
	if err != nil {
		t.Fatal(err)
	}
	seed, siblings := maphash.MakeSeed(), 0
	for world := range uint64(60) {
		random := rand.New(rand.NewPCG(world, 7))
		u := config.Upstream{Name: "east", Services: config.Services{Mode: []string{config.ServicesOmit, config.ServicesDiscover}[world%2]}}
		if world%3 == 0 {
			u.Guard.Profile = config.ProfileRegistry
		}
		rs := New(u, imports(t, u, config.Provenance{}), nobody{})
		rs.Open([]Scope{scope})
		for range 60 {
			rs.SetNow(rs.now, rs.connected+keepFor/10)
			var elements []Element
			for i := range 12 {
				if random.IntN(4) == 0 {
					continue
				}
				name := fmt.Sprintf("shop/%s%d", []string{"", "synthetic-"}[i%2], i)
				b := raw(t, name, fmt.Sprintf("h-%d.example", random.IntN(3)))
				if random.IntN(20) == 0 {
					b = b[:len(b)-1]
				}
				elements = append(elements, Element{Name: []byte(name), Raw: b, Mark: maphash.Bytes(seed, b)})
			}
			complete, n := random.IntN(3) > 0, random.IntN(len(elements)+1)
			take := func(part bool, elements []Element) {
				up := &Update{Scope: scope, Complete: complete, Part: part, Room: len(elements)}
				up.Elements = func(_ int, known Known) iter.Seq[Element] {
					return func(yield func(Element) bool) {
						for _, el := range elements {
							if (known == nil || !known(el.Mark, len(el.Raw))) && !yield(el) {
								return
							}
						}
					}
				}
				if complete && random.IntN(2) > 0 {
					up.Marks = func(yield func(uint64, int) bool) {
						for _, el := range elements {
							if !yield(el.Mark, len(el.Raw)) {
								return
							}
						}
					}
				}
				if !complete {
					up.Removed = slices.Values([][]byte{[]byte("shop/3"), []byte("shop/synthetic-4")})
				}
				rs.Take(up, random.IntN(9) == 0, &Result{})
				obey(t, rs, random.IntN(2) > 0)
			}
			switch random.IntN(6) {
			case 0:
				u.Limits = config.Limits{MaxResources: random.IntN(3) * 6, MaxBytes: random.IntN(2) * 6000, MaxResourceBytes: []int{0, 1000, 150}[random.IntN(3)]}
				rs.SetLimits(u.Limits)
			case 1:
				take(true, elements[:n])
				elements = elements[n:]
			}
			take(false, elements)
			rs.Settle(scope)
			rs.EndKeeping()
			obey(t, rs, true)
			if asked := rs.Ask(); asked != nil || random.IntN(2) == 0 {
				answers, pods := map[string]Assignment{}, random.IntN(3)
				for cluster := range rs.discovery.users {
					var all []services.Endpoint
					for i := range pods {
						if strings.Contains(cluster, "|80|") || i > 0 {
							all = append(all, services.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), Port: 8080})
						}
					}
					answers[cluster] = Assignment{Endpoints: services.Pack(all), Known: pods > 0}
				}
				rs.Endpoints(answers, &Result{})
				obey(t, rs, false)
			}
			for _, rec := range rs.all(federation.ServiceEntry) {
				siblings += len(rec.siblings)
			}
		}
		rs.Take(&Update{Scope: scope, Complete: true, Elements: Resources()}, false, &Result{})
		obey(t, rs, true)
		for key := range rs.former {
			rs.LetGo(key)
		}
		rs.SetNow(rs.now, rs.connected+keepFor)
		rs.EndKeeping()
		obey(t, rs, true)
		if rs.resources+len(rs.former)+len(rs.discovery.users) > 0 {
			t.Fatalf("world %d: %d resources and %d former ones are left, %d clusters are followed", world, rs.resources, len(rs.former), len(rs.discovery.users))
		}
	}
	if siblings == 0 {
		t.Error("no service has a sibling")
	}
}
