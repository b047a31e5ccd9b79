package services

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/mirror"
)

// What each change concerns, with its messages, is in TestEachChangeHasItsReasonAndCostsAClientItsOwnResourceAtMost of relay.

func compared(tb testing.TB, kind mirror.Kind, m proto.Message, edits ...func(*mirror.Spec)) *mirror.Resource {
	tb.Helper()
	body, err := anypb.New(m)
	if err != nil {
		tb.Fatal(err)
	}
	s := mirror.Spec{Key: mirror.Key{Kind: kind, Namespace: "shop", Name: "db"}, Source: "east", Cluster: "east", Body: body}
	for _, edit := range edits {
		edit(&s)
	}
	r, err := mirror.New(s)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// TestEachFieldOfAServiceConcernsIt: a field that is new in istio.io/api has to be decided about.
func TestEachFieldOfAServiceConcernsIt(t *testing.T) {
	apart := map[protoreflect.FullName]bool{
		"istio.networking.v1alpha3.ServiceEntry.ports": true, "istio.networking.v1alpha3.ServiceEntry.endpoints": true,
	}
	for _, c := range []struct {
		fields []concern
		m      proto.Message
	}{{entryFields, &networking.ServiceEntry{}}, {portFields, &networking.ServicePort{}}, {workloadFields, &networking.WorkloadEntry{}}} {
		d := c.m.ProtoReflect().Descriptor()
		for i := range d.Fields().Len() {
			f := d.Fields().Get(i)
			if n := int(f.Number()); (n >= len(c.fields) || c.fields[n] == ofNothing) != apart[f.FullName()] {
				t.Errorf("a difference in %s concerns nothing, or is looked at twice", f.FullName())
			}
		}
	}
}

func TestWhoMaySeeAServiceConcernsIt(t *testing.T) {
	se := &networking.ServiceEntry{Hosts: []string{"db.example"}}
	r := compared(t, federation.ServiceEntry, se)
	for name, c := range map[string]struct {
		edit func(*mirror.Spec)
		want bool
	}{
		"cluster":  {func(s *mirror.Spec) { s.Cluster = "west" }, false}, // alone it is no other content
		"upstream": {func(s *mirror.Spec) { s.Source, s.Cluster = "west", "west" }, true},
		"revision": {func(s *mirror.Spec) { s.Labels = map[string]string{"istio.io/rev": "canary"} }, true},
		"age":      {func(s *mirror.Spec) { s.CreateTime = s.CreateTime.AddDate(2000, 0, 0) }, true},
	} {
		if service, endpoint := Concerns(r, compared(t, federation.ServiceEntry, se, c.edit)); service != c.want || endpoint {
			t.Errorf("%s: %v and %v, want %v and false", name, service, endpoint, c.want)
		}
	}
}

func TestOnlyServiceEntriesAndWorkloadEntriesConcernAService(t *testing.T) {
	for name, c := range map[string]struct {
		kind              mirror.Kind
		old, now          proto.Message
		service, endpoint bool
	}{
		"service":   {federation.ServiceEntry, &networking.ServiceEntry{}, &networking.ServiceEntry{Hosts: []string{"db.example"}}, true, false},
		"endpoint":  {federation.ServiceEntry, &networking.ServiceEntry{}, &networking.ServiceEntry{Endpoints: []*networking.WorkloadEntry{{Address: "10.0.0.1"}}}, false, true},
		"workload":  {federation.WorkloadEntry, &networking.WorkloadEntry{}, &networking.WorkloadEntry{Address: "10.0.0.1"}, false, true},
		"unchanged": {federation.WorkloadEntry, &networking.WorkloadEntry{}, &networking.WorkloadEntry{}, false, false},
		"rule":      {federation.DestinationRule, &networking.DestinationRule{}, &networking.DestinationRule{Host: "db.example"}, false, false},
		"unknown":   {mirror.Kind{Group: "x.example", Kind: "Y"}, &networking.DestinationRule{}, &networking.DestinationRule{Host: "db.example"}, false, false},
	} {
		if service, endpoint := Concerns(compared(t, c.kind, c.old), compared(t, c.kind, c.now)); service != c.service || endpoint != c.endpoint {
			t.Errorf("%s: %v and %v, want %v and %v", name, service, endpoint, c.service, c.endpoint)
		}
	}
}

// pods returns a service with n endpoints.
func pods(tb testing.TB, n int, edit func(*networking.ServiceEntry)) *mirror.Resource {
	return synthetic(tb, func(se *networking.ServiceEntry) {
		for i := range n {
			se.Endpoints = append(se.Endpoints, &networking.WorkloadEntry{
				Address: fmt.Sprintf("10.1.%d.%d", i/250, i%250+1), Ports: map[string]uint32{"http": 8080},
				Labels: map[string]string{"app": "db"}, ServiceAccount: "db", Locality: "eu/eu-1", Network: "net-east",
			})
		}
		if edit != nil {
			edit(se)
		}
	})
}

func TestAComparisonDoesNotAllocate(t *testing.T) {
	old, edits := pods(t, 10, nil), map[string]func(*networking.ServiceEntry){
		"endpoints": func(se *networking.ServiceEntry) { se.Endpoints = slices.Delete(se.Endpoints, 3, 4) },
		"accounts":  func(se *networking.ServiceEntry) { se.Endpoints[0].ServiceAccount = "other" },
		"ports":     func(se *networking.ServiceEntry) { se.Ports[0].TargetPort = 8080 },
		"nothing":   nil,
	}
	for _, name := range slices.Sorted(maps.Keys(edits)) {
		now := pods(t, 10, edits[name])
		if n := testing.AllocsPerRun(100, func() { Concerns(old, now) }); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	rule := func(host string) *mirror.Resource {
		return compared(t, federation.DestinationRule, &networking.DestinationRule{Host: host})
	}
	a, b := rule("a.example"), rule("b.example")
	if n := testing.AllocsPerRun(100, func() { Concerns(a, b) }); n > 0 {
		t.Errorf("another kind: %v allocations", n)
	}
}

func BenchmarkConcerns(b *testing.B) {
	for _, n := range []int{0, 10, 1000} {
		old := pods(b, n+1, nil)
		now := pods(b, n+1, func(se *networking.ServiceEntry) { se.Endpoints[n].Weight = 7 })
		b.Run(fmt.Sprintf("endpoints-%d", n+1), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Concerns(old, now)
			}
		})
	}
	old := compared(b, federation.DestinationRule, &networking.DestinationRule{Host: "a.example"})
	now := compared(b, federation.DestinationRule, &networking.DestinationRule{Host: "b.example"})
	b.Run("another-kind", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			Concerns(old, now)
		}
	})
}

// FuzzConcerns: bodies come from outside. The answer does not depend on which content is the newer one, and two ServiceEntries
// whose differences concern nothing differ in the order of their endpoints only.
func FuzzConcerns(f *testing.F) {
	seed := func(r *mirror.Resource) []byte { return r.BodyValue() }
	f.Add(seed(pods(f, 3, nil)), seed(pods(f, 2, nil)))
	f.Add(seed(pods(f, 2, nil)), seed(pods(f, 2, func(se *networking.ServiceEntry) { slices.Reverse(se.Endpoints) })))
	f.Add(seed(pods(f, 0, nil)), seed(pods(f, 0, func(se *networking.ServiceEntry) { se.Ports[1].TargetPort = 1 })))
	f.Fuzz(func(t *testing.T, x, y []byte) {
		of := func(body []byte) (*mirror.Resource, *networking.ServiceEntry) {
			r, err := mirror.New(mirror.Spec{
				Key: mirror.Key{Kind: federation.ServiceEntry, Namespace: "shop", Name: "db"}, Source: "east",
				Body: &anypb.Any{TypeUrl: "type.googleapis.com/istio.networking.v1alpha3.ServiceEntry", Value: body},
			})
			if err != nil {
				t.Skip()
			}
			se := &networking.ServiceEntry{}
			if err := proto.Unmarshal(body, se); err != nil {
				t.Fatal(err)
			}
			return r, se
		}
		old, was := of(x)
		now, is := of(y)
		service, endpoint := Concerns(old, now)
		if a, b := Concerns(now, old); a != service || b != endpoint {
			t.Fatalf("%v and %v there, %v and %v back", service, endpoint, a, b)
		}
		if service || endpoint {
			return
		}
		for _, se := range []*networking.ServiceEntry{was, is} {
			se.ProtoReflect().SetUnknown(nil)
			for _, p := range se.Ports {
				p.ProtoReflect().SetUnknown(nil)
			}
			se.Endpoints = nil
		}
		if !proto.Equal(was, is) {
			t.Fatalf("nothing is told:\n%v\n%v", was, is)
		}
	})
}
