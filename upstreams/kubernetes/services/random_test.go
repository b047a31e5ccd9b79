package services

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	endpoints "meshrelay/federation/services"

	"meshrelay/upstreams/kubernetes/object"
)

// event is a change of a State: a new object, or the removal of one if text is empty.
type event struct {
	in         Input
	name, text string
}

func pick[T any](t *rapid.T, of ...T) T { return rapid.SampledFrom(of).Draw(t, "pick") }

func drawEvent(t *rapid.T) event {
	namespace, letter := pick(t, "shop", "shop", "bank"), func() string { return pick(t, "a", "b", "c") }
	e := event{in: Input(rapid.IntRange(0, int(inputs)-1).Draw(t, "input")), name: namespace + "/" + letter()}
	if e.in == Nodes {
		e.name = "/" + letter()
	}
	address := func() string { return "10.0.0." + pick(t, "1", "2", "3") }
	labels := func() string {
		return pick(t, ``, `"app":"a"`, `"app":"b"`, `"app":"a","version":"v1"`, `"app":"b","security.istio.io/tlsMode":"istio"`, `"topology.istio.io/network":"net1"`)
	}
	if rapid.IntRange(0, 4).Draw(t, "remove") == 0 {
		return e
	}
	switch e.in {
	case Services:
		e.text = fmt.Sprintf(`{"metadata":{"labels":{%s}},"spec":{"clusterIP":%q,"selector":{%s},"publishNotReadyAddresses":%v,"internalTrafficPolicy":%q,"ipFamilies":[%q],"ports":[{"name":"http","port":%s,"targetPort":%s},{"port":9}]}}`,
			labels(), pick(t, "10.96.0.1", "10.96.0.1", "None"), pick(t, ``, `"app":"a"`, `"app":"b"`), pick(t, true, false), pick(t, "Cluster", "Cluster", "Local"), pick(t, "IPv4", "IPv6"), pick(t, "80", "81"), pick(t, `8080`, `"web"`))
	case Slices:
		var all []string
		for range rapid.IntRange(0, 3).Draw(t, "endpoints") {
			all = append(all, fmt.Sprintf(`{"addresses":[%q],"nodeName":%q,"zone":%q,"conditions":{"ready":%v,"terminating":%v},"targetRef":{"kind":%q,"namespace":%q,"name":%q}}`,
				pick(t, address(), "fd00::1"), pick(t, "", "a", "b"), pick(t, "", "z"), pick(t, "true", "true", "false", "null"), pick(t, "false", "false", "true"), pick(t, "Pod", "Pod", ""), namespace, letter()))
		}
		e.text = fmt.Sprintf(`{"metadata":{"labels":{"kubernetes.io/service-name":%q}},"addressType":%q,"endpoints":[%s],"ports":[{"name":"http","port":%s},{"port":90}]}`,
			pick(t, "a", "b", ""), pick(t, "IPv4", "IPv4", "IPv6", "FQDN"), strings.Join(all, ","), pick(t, "8080", "8081"))
	case Pods:
		e.text = strings.NewReplacer(`"n1"`, `"`+letter()+`"`, "True", pick(t, "True", "True", "False")).Replace(podText(address(), labels(), pick(t, ``, ``, `,"deletionTimestamp":"2026-01-01T00:00:00Z"`)))
	case Nodes:
		e.text = fmt.Sprintf(`{"metadata":{"labels":{"topology.kubernetes.io/region":%q,"topology.kubernetes.io/zone":%q}}}`, pick(t, "eu", "us", ""), pick(t, "z", "y"))
	case Exports:
		e.text = `{}`
	case Workloads:
		e.text = fmt.Sprintf(`{"metadata":{"labels":{%s}},"spec":{"address":%q,"ports":{%q:9000},"network":%q}}`, labels(), pick(t, "192.0.2.1", "192.0.2.2", "vm.example", ""), pick(t, "http", "web"), pick(t, "", "net2"))
	}
	return e
}

func drawOptions(t *rapid.T) Options {
	return Options{Domain: pick(t, "", "", "d"), Network: pick(t, "", "net9"), Local: pick(t, nil, []string{"*.bank.svc.cluster.local"}), Exported: pick(t, false, true)}
}

// everyCluster has each cluster that a random world can have.
func everyCluster() map[string]struct{} {
	all := map[string]struct{}{}
	for _, namespace := range []string{"shop", "bank"} {
		for _, labels := range []string{"", "app=a", "app=b", "app=a,version=v1"} {
			for _, port := range []string{"http", "web"} {
				all["workloads|"+namespace+"|"+labels+"|"+port+"|7000"] = struct{}{}
			}
		}
		for _, port := range []string{"80", "81", "9"} {
			for _, name := range []string{"a", "b", "c"} {
				for _, domain := range []string{"cluster.local", "d"} {
					all["outbound|"+port+"||"+name+"."+namespace+".svc."+domain] = struct{}{}
				}
			}
		}
	}
	return all
}

// seen is what somebody has read of a State.
type seen struct {
	outputs  map[string]*Output
	clusters map[string]string
}

func textOf(s *State, cluster string) string {
	all, known := s.Endpoints(cluster)
	if !slices.IsSortedFunc(all, compare) {
		return "not sorted"
	}
	return fmt.Sprintf("%v %+v", known, all)
}

// read updates what was read by what Flush returns.
func (r *seen) read(s *State) {
	changes, clusters := s.Flush()
	for _, c := range changes {
		if r.outputs[c.Key.Name+" "+c.Key.Namespace] = c; c.Gone() {
			delete(r.outputs, c.Key.Name+" "+c.Key.Namespace)
		}
	}
	for _, c := range clusters {
		r.clusters[c] = textOf(s, c)
	}
}

func TestAnyOrderOfEventsGivesTheStateFromScratch_K15(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o, every := drawOptions(t), everyCluster()
		s, held := New(o), map[string]event{}
		s.Want(every)
		reader := &seen{map[string]*Output{}, map[string]string{}}
		for c := range every {
			reader.clusters[c] = textOf(s, c)
		}
		sync := rapid.IntRange(0, 10).Draw(t, "sync")
		for i := range rapid.IntRange(0, 40).Draw(t, "events") {
			if i == sync {
				for in := range inputs {
					s.Synced(in)
				}
			}
			if pick(t, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9) == 0 {
				o = drawOptions(t)
				s.SetOptions(o)
			}
			e := drawEvent(t)
			namespace, name, _ := strings.Cut(e.name, "/")
			if key := fmt.Sprint(e.in, " ", e.name); e.text == "" {
				s.Remove(e.in, Name{namespace, name})
				delete(held, key)
			} else {
				s.Set(decodeIn(t, e))
				held[key] = e
			}
			if pick(t, true, false) {
				reader.read(s)
			}
		}
		for in := range inputs {
			s.Synced(in)
		}
		reader.read(s)
		fresh := New(o)
		fresh.Want(every)
		for _, key := range rapid.Permutation(slices.Sorted(maps.Keys(held))).Draw(t, "order") {
			fresh.Set(decodeIn(t, held[key]))
		}
		for in := range inputs {
			fresh.Synced(in)
		}
		fresh.Flush()
		for c := range every {
			if now := textOf(fresh, c); textOf(s, c) != now || reader.clusters[c] != now {
				t.Fatalf("%s:\nread         %s\nnow          %s\nfrom scratch %s", c, reader.clusters[c], textOf(s, c), now)
			}
		}
		compareOutputs(t, reader, fresh)
	})
}

func decodeIn(t *rapid.T, e event) object.Input {
	d, err := decodeText(e.in, e.name, e.text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func compareOutputs(t *rapid.T, reader *seen, fresh *State) {
	all := fresh.All()
	if len(all) != len(reader.outputs) {
		t.Fatalf("%d outputs, %d from scratch", len(reader.outputs), len(all))
	}
	for _, out := range all {
		have := reader.outputs[out.Key.Name+" "+out.Key.Namespace]
		if have == nil || !proto.Equal(have.Body, out.Body) || have.LeftOut != out.LeftOut || !maps.Equal(have.Labels, out.Labels) || have.Digest() != out.Digest() {
			t.Fatalf("%+v, from scratch %+v", have, out)
		}
	}
}

// No selector, pod, WorkloadEntry or Node can take an endpoint away that a slice has, or give it another address.
func TestAddressesOfServicesAreThoseOfSlicesAndWorkloadEntries_K15(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, allowed := New(Options{}), map[string]bool{}
		for range rapid.IntRange(0, 30).Draw(t, "events") {
			e := drawEvent(t)
			if e.text == "" {
				continue
			}
			for _, a := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::1", "192.0.2.1", "192.0.2.2"} {
				allowed[a] = allowed[a] || (e.in == Slices || e.in == Workloads) && strings.Contains(e.text, a)
			}
			s.Set(decodeIn(t, e))
		}
		for c := range everyCluster() {
			all, _ := s.Endpoints(c)
			for _, e := range all {
				if !strings.HasPrefix(c, endpoints.SelectedPrefix) && !allowed[e.Addr.String()] && (e.Addr.IsValid() || e.Network == "") {
					t.Fatalf("%s has %s", c, e.Addr)
				}
			}
		}
	})
}
