package services

import (
	"maps"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
	"pgregory.net/rapid"

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
		changed := body(t, out).Ports[0].TargetPort != body(t, test.r).Ports[0].TargetPort
		if changed != test.told {
			t.Errorf("%s: an istiod takes notice: %v", test.name, changed)
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
		settle(got.Ports)
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
				n, is := e.Ports[p.Name]
				if named := len(e.Ports) > 0; named && (!is || n != p.Number+8000 && n != p.Number) || named && len(e.Ports) != len(got.Ports) {
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
	one := func(address string) []*networking.WorkloadEntry {
		return []*networking.WorkloadEntry{{Address: address}}
	}
	base, bare := synthetic(t, func(se *networking.ServiceEntry) { se.Endpoints = one("192.0.2.9") }), synthetic(t, nil)
	for name, edit := range map[string]func(*networking.ServiceEntry){
		"endpoints": func(se *networking.ServiceEntry) { se.Endpoints = one("192.0.2.1") },
		"names": func(se *networking.ServiceEntry) {
			se.Endpoints, se.Resolution = one("db.internal"), networking.ServiceEntry_DNS
		},
		"resolution without endpoints!": func(se *networking.ServiceEntry) { se.Endpoints, se.Resolution = nil, networking.ServiceEntry_DNS },
		"hosts!":                        func(se *networking.ServiceEntry) { se.Hosts[0] = "x.example" },
		"ports!":                        func(se *networking.ServiceEntry) { se.Ports = se.Ports[:1] },
	} {
		with := func(se *networking.ServiceEntry) { se.Endpoints = one("192.0.2.9"); edit(se) }
		from := base
		if name == "resolution without endpoints!" {
			from = bare
		}
		if got := SameConfig(from, synthetic(t, with)); got != (name[len(name)-1] != '!') {
			t.Errorf("%s: %v", name, got)
		}
	}
	spec := base.Spec()
	spec.Labels = map[string]string{"a": "b"}
	labelled, err := mirror.New(spec)
	if err != nil || SameConfig(base, labelled) {
		t.Errorf("labels are config: %v", err)
	}
}

func TestPortsWithoutANumberAreThoseOfBefore(t *testing.T) {
	ports := func(ports ...*networking.ServicePort) *mirror.Resource {
		return synthetic(t, func(se *networking.ServiceEntry) { se.WorkloadSelector, se.Ports = nil, ports })
	}
	unknown, known := ports(&networking.ServicePort{Name: "http"}), ports(&networking.ServicePort{Name: "http", Number: 80})
	without := func(r, earlier *mirror.Resource) *mirror.Resource {
		t.Helper()
		out, err := WithoutFrom(r, earlier)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	bare := without(known, nil)
	if got := without(unknown, nil); body(t, got).Ports[0].Number != 0 {
		t.Errorf("%v", body(t, got))
	}
	for _, earlier := range []*mirror.Resource{known, bare} {
		if got := without(unknown, earlier); !got.Equal(bare) {
			t.Errorf("%v, and it is %v", body(t, got), body(t, bare))
		}
	}
	if got := without(known, unknown); !got.Equal(bare) {
		t.Errorf("%v", body(t, got))
	}
}

// TestWithoutAddressesOnlyAllocatedOnesStay, and a resource that has no other keeps its bytes.
func TestWithoutAddressesOnlyAllocatedOnesStay(t *testing.T) {
	for _, tc := range []struct {
		given, want []string
	}{
		{nil, nil},
		{[]string{"240.240.0.7", "2001:2::7"}, []string{"240.240.0.7", "2001:2::7"}},
		{[]string{"10.0.0.1", "240.240.0.7", "0.0.0.0/0", "240.240.0.0/16", "240.241.0.1", "2001:2:1::1", "::ffff:240.240.0.1", "x"}, []string{"240.240.0.7"}},
		{[]string{"10.0.0.1"}, nil},
	} {
		r := synthetic(t, func(se *networking.ServiceEntry) { se.Addresses = tc.given })
		out, err := WithoutAddresses(r)
		if err != nil {
			t.Fatal(err)
		}
		if got := sound(t, out).Addresses; !slices.Equal(got, tc.want) || len(tc.given) == len(tc.want) && out != r || out.HasAnnotation(EndpointsAnnotation) {
			t.Errorf("%q become %q", tc.given, got)
		}
	}
}

func TestAllocatedAddressesAreThoseThatIstiodsUse(t *testing.T) {
	one := []Allocated{{"240.240.0.1", "db.shop.svc.cluster.local"}, {"2001:2::1", "db.shop.svc.cluster.local"}}
	for _, test := range []struct {
		name   string
		change func(*networking.ServiceEntry)
		label  string
		all    []Allocated
		want   []string
	}{
		{"both families", nil, "", one, []string{"240.240.0.1", "2001:2::1"}},
		{"without resolution none is used", func(se *networking.ServiceEntry) { se.Resolution = networking.ServiceEntry_NONE }, "", one, nil},
		{"with addresses of its own none is used", func(se *networking.ServiceEntry) { se.Addresses = []string{"10.0.0.1"} }, "", one, nil},
		{"the label takes it off", nil, "False", one, nil},
		{"another value of the label does not", nil, "true", one[:1], []string{"240.240.0.1"}},
		{"a host that is not of the entry", nil, "", []Allocated{{"240.240.0.1", "other.x"}}, nil},
		{"what is no address", nil, "", []Allocated{{"240.240.0.1,10.0.0.1", "db.shop.svc.cluster.local"}, {"fe80::1%eth0", "db.shop.svc.cluster.local"}, {"10.0.0.0/8", "db.shop.svc.cluster.local"}}, nil},
		{"one that is told twice", nil, "", append(one[:1:1], one[0]), []string{"240.240.0.1"}},
		{"more than two for each host", nil, "", append(slices.Repeat([]Allocated{{}}, mirror.MaxAllocated), one...), nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := synthetic(t, func(se *networking.ServiceEntry) {
				if se.Addresses = nil; test.change != nil {
					test.change(se)
				}
			})
			if test.label != "" {
				s := r.Spec()
				s.Labels["networking.istio.io/enable-autoallocate-ip"] = test.label
				r = must(mirror.New(s))
			}
			out := must(WithAllocated(r, test.all))
			if test.want == nil {
				if out != r {
					t.Errorf("it has %v", body(t, out).Addresses)
				}
				return
			}
			if got := body(t, out).Addresses; !slices.Equal(got, test.want) || !slices.Equal(slices.Sorted(slices.Values(got)), out.Allocated()) {
				t.Errorf("it has %v, and the annotation %v, want %v", got, out.Allocated(), test.want)
			}
			if again := must(out.WithoutAllocated()); !proto.Equal(body(t, again), body(t, r)) || !again.HasAnnotation(mirror.AllocatedAnnotation) {
				t.Errorf("without them it is %v", body(t, again))
			}
		})
	}
}

func TestOnlyARelayTellsOfAllocatedAddressesThatAnEntryHasNot(t *testing.T) {
	for mark, stays := range map[string]bool{"10.96.0.7": true, "240.240.0.1": false, "10.96.0.7,240.240.0.1": false, "": true} {
		s := synthetic(t, nil).Spec()
		s.Annotations = map[string]string{mirror.AllocatedAnnotation: mark}
		if got := must(Believed(must(mirror.New(s)))).HasAnnotation(mirror.AllocatedAnnotation); got != stays {
			t.Errorf("%q stays: %v", mark, got)
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
