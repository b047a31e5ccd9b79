package services

import (
	"maps"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
	"pgregory.net/rapid"

	"meshrelay/federation"
	"meshrelay/mirror"
)

func body(t testing.TB, r *mirror.Resource) *networking.ServiceEntry {
	t.Helper()
	se, err := entryOf(r)
	if err != nil {
		t.Fatal(err)
	}
	return se
}

func TestAServiceWithoutEndpointsTellsSo(t *testing.T) {
	with := func(edit func(*networking.ServiceEntry)) *mirror.Resource {
		return synthetic(t, func(se *networking.ServiceEntry) { se.WorkloadSelector = nil; edit(se) })
	}
	one := []*networking.WorkloadEntry{{Address: "192.0.2.1"}}
	for _, test := range []struct {
		name string
		r    *mirror.Resource
		told bool
	}{
		{"static", with(func(se *networking.ServiceEntry) { se.Endpoints = one }), true},
		{"static, without any", with(func(*networking.ServiceEntry) {}), true},
		{"names", with(func(se *networking.ServiceEntry) { se.Resolution, se.Endpoints = networking.ServiceEntry_DNS, one }), true},
		{"the host is resolved", with(func(se *networking.ServiceEntry) { se.Resolution = networking.ServiceEntry_DNS }), false},
		{"none are needed", with(func(se *networking.ServiceEntry) { se.Resolution = networking.ServiceEntry_NONE }), false},
		{"workloads are selected", synthetic(t, nil), false},
	} {
		out, err := Without(test.r)
		if err != nil || Told(out) != test.told || !test.told && out != test.r {
			t.Errorf("%s: %v, %v", test.name, out, err)
			continue
		}
		if se := body(t, out); len(se.Endpoints) > 0 || test.told && se.Resolution != networking.ServiceEntry_STATIC {
			t.Errorf("%s: %v", test.name, se)
		}
		if again, err := Without(out); err != nil || again != out {
			t.Errorf("%s: another time it differs", test.name)
		}
		plain, err := Untold(out)
		if err != nil || Told(plain) || plain.HasAnnotation(EndpointsAnnotation) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

// TestWhatFollowsHasTheConfigOfOneAndTheAddressesOfTheOther: nobody is sent to an address that present has not, and each
// endpoint serves each port.
func TestWhatFollowsHasTheConfigOfOneAndTheAddressesOfTheOther(t *testing.T) {
	names, numbers := []string{"http", "grpc", "admin"}, []uint32{80, 90, 100}
	rapid.Check(t, func(r *rapid.T) {
		entry := func(what string) *mirror.Resource {
			return synthetic(t, func(se *networking.ServiceEntry) {
				se.WorkloadSelector, se.Ports = nil, nil
				se.Hosts = []string{rapid.SampledFrom([]string{"a.example", "b.example"}).Draw(r, what+" host")}
				shift := rapid.IntRange(0, 2).Draw(r, what+" shift")
				n := rapid.IntRange(1, 3).Draw(r, what+" ports")
				for i := range n {
					se.Ports = append(se.Ports, &networking.ServicePort{Number: numbers[i], Name: names[(i+shift)%3], Protocol: "TCP"})
				}
				for i := range rapid.IntRange(0, 3).Draw(r, what+" endpoints") {
					e := &networking.WorkloadEntry{Address: string([]byte{'1', '0', '.', '0', '.', '0', '.', byte('1' + i)})}
					if rapid.Bool().Draw(r, what+" names") {
						e.Ports = map[string]uint32{}
						for _, p := range se.Ports {
							e.Ports[p.Name] = p.Number + 8000
						}
					}
					se.Endpoints = append(se.Endpoints, e)
				}
			})
		}
		config, present, made := entry("config"), entry("present"), rapid.Bool().Draw(r, "made")
		out, err := Follow(config, present, made)
		if err != nil {
			r.Fatal(err)
		}
		got, had, now := body(t, out), body(t, config), body(t, present)
		if len(got.Ports) == 0 || !slices.Equal(got.Hosts, had.Hosts) || !made && len(got.Ports) != len(had.Ports) || Told(out) != (len(got.Endpoints) == 0) {
			r.Fatalf("%v of %v and %v", got, had, now)
		}
		seen := map[string]bool{}
		for _, p := range got.Ports {
			if seen[p.Name] {
				r.Fatalf("two ports are named %s: %v of %v and %v", p.Name, got, had, now)
			}
			seen[p.Name] = true
		}
		for _, e := range got.Endpoints {
			if !slices.ContainsFunc(now.Endpoints, func(x *networking.WorkloadEntry) bool { return x.Address == e.Address }) {
				r.Fatalf("%s is of nobody", e.Address)
			}
			for _, p := range got.Ports {
				if n, is := e.Ports[p.Name]; len(e.Ports) > 0 && (!is || n != p.Number+8000) || len(e.Ports) > 0 && len(e.Ports) != len(got.Ports) {
					r.Fatalf("%v does not serve %v as %v does", e, p, now)
				}
			}
		}
		if slices.Equal(keysOf(had.Ports), keysOf(now.Ports)) && len(got.Endpoints) != len(now.Endpoints) {
			r.Fatalf("endpoints are lost: %v of %v", got, now)
		}
	})
}

func keysOf(ports []*networking.ServicePort) []uint32 {
	out := map[uint32]bool{}
	for _, p := range ports {
		out[p.Number] = true
	}
	return slices.Sorted(maps.Keys(out))
}

func TestOnlyEndpointsAndTheirResolutionAreNoConfig(t *testing.T) {
	base := synthetic(t, nil)
	for name, edit := range map[string]func(*networking.ServiceEntry){
		"endpoints": func(se *networking.ServiceEntry) { se.Endpoints = []*networking.WorkloadEntry{{Address: "192.0.2.1"}} },
		"names":     func(se *networking.ServiceEntry) { se.Resolution = networking.ServiceEntry_DNS },
		"hosts!":    func(se *networking.ServiceEntry) { se.Hosts[0] = "x.example" },
		"ports!":    func(se *networking.ServiceEntry) { se.Ports = se.Ports[:1] },
	} {
		if got := SameConfig(base, synthetic(t, edit)); got != (name[len(name)-1] != '!') {
			t.Errorf("%s: %v", name, got)
		}
	}
	spec := base.Spec()
	spec.Labels = map[string]string{"a": "b"}
	labelled, err := mirror.New(spec)
	if err != nil || SameConfig(base, labelled) {
		t.Errorf("labels are config: %v", err)
	}
	if bare, err := Without(synthetic(t, func(se *networking.ServiceEntry) { se.WorkloadSelector = nil })); err != nil || !SameConfig(bare, synthetic(t, func(se *networking.ServiceEntry) { se.WorkloadSelector = nil })) {
		t.Errorf("the annotation is config: %v", err)
	}
}

func TestPortsWithoutANumberAreThoseOfBefore(t *testing.T) {
	unknown := synthetic(t, func(se *networking.ServiceEntry) { se.Ports = []*networking.ServicePort{{Name: "http"}} })
	for _, test := range []struct{ r, earlier, want *mirror.Resource }{
		{unknown, synthetic(t, nil), synthetic(t, nil)}, {unknown, nil, unknown}, {synthetic(t, nil), unknown, synthetic(t, nil)},
	} {
		out, err := WithPorts(test.r, test.earlier)
		if err != nil || !proto.Equal(body(t, out), body(t, test.want)) {
			t.Errorf("%v, %v", body(t, out), err)
		}
	}
	if federation.HasEndpoints(unknown.BodyValue()) {
		t.Error("it has endpoints")
	}
}
