package e2e

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"
)

// randomServices are the services of a world that change at random.
type randomServices struct {
	w     *cluster
	rand  *rand.Rand
	all   map[string]*service
	nodes []string       // "" is for pods of none
	pods  int            // so far: each has a name and an address of its own
	made  int            // services so far
	done  map[string]int // changes
}

// portNames have names of protocols that istiods know, and of others.
var portNames = []string{"http", "http-web", "grpc", "tcp-raw", "https", "tls", "mongo", "redis", "admin", "h2"}

func (r *randomServices) ports() (all []worldPort) {
	names := slices.Clone(portNames)
	r.rand.Shuffle(len(names), func(a, b int) { names[a], names[b] = names[b], names[a] })
	for n := range 1 + r.rand.IntN(3) {
		p := worldPort{name: names[n], number: 80 + 10*n, at: 8080 + 10*n + r.rand.IntN(2)}
		if r.rand.IntN(8) == 0 {
			p.protocol = "UDP"
		}
		p.app = []string{"", "", "", "http", "kubernetes.io/h2c", "example.com/odd"}[r.rand.IntN(6)]
		all = append(all, p)
	}
	if len(all) == 1 && r.rand.IntN(3) == 0 {
		all[0].name = ""
	}
	return all
}

func (r *randomServices) instance(s *service) instance {
	r.pods++
	i := instance{
		ip: fmt.Sprintf("10.%d.%d.%d", 2+r.pods/62500, r.pods/250%250, 1+r.pods%250), node: r.nodes[r.rand.IntN(len(r.nodes))],
		account: []string{"", "one", "two"}[r.rand.IntN(3)], outOfMesh: r.rand.IntN(4) == 0,
		labels: map[string]string{"version": []string{"v1", "v2"}[r.rand.IntN(2)]},
	}
	if s.unselected {
		i.node = ""
	} else {
		i.name = "pod-" + strconv.Itoa(r.pods)
	}
	r.health(s, &i)
	return i
}

func (r *randomServices) health(s *service, i *instance) {
	i.unready, i.terminating, i.published = false, false, false
	switch r.rand.IntN(6) {
	case 0:
		i.unready = true
		i.published = s.spec["publishNotReadyAddresses"] == true
	case 1:
		i.terminating = s.spec["publishNotReadyAddresses"] != true
	}
}

// addNode makes a node somewhere, or nowhere.
func (r *randomServices) addNode() {
	name := fmt.Sprintf("node-%d-%d", r.made, len(r.nodes))
	place := []string{[]string{"north", "south"}[r.rand.IntN(2)], []string{"a", "b"}[r.rand.IntN(2)], "rack-" + strconv.Itoa(r.rand.IntN(3))}
	r.w.node(name, place[:r.rand.IntN(4)]...)
	r.nodes = append(r.nodes, name)
}

// create makes a service of up to six instances.
func (r *randomServices) create() {
	r.made++
	s := &service{namespace: []string{"shop", "web"}[r.rand.IntN(2)], name: "svc-" + strconv.Itoa(r.made), ports: r.ports(), spec: map[string]any{}}
	switch r.rand.IntN(8) {
	case 0:
		s.unselected = true
	case 1:
		s.spec["clusterIP"] = "None"
	case 2:
		s.spec["publishNotReadyAddresses"] = true
	}
	var all []instance
	for range r.rand.IntN(7) {
		all = append(all, r.instance(s))
	}
	r.split(s, all)
	r.export(s)
	r.w.put(*s)
	r.all[s.name] = s
}

// split has up to three EndpointSlices have the instances.
func (r *randomServices) split(s *service, all []instance) {
	s.slices = make([]slice, r.rand.IntN(3)+1)
	for _, i := range all {
		n := r.rand.IntN(len(s.slices))
		s.slices[n].pods = append(s.slices[n].pods, i)
	}
}

func (r *randomServices) export(s *service) {
	s.annotations = nil
	if to := []string{"", "", "", "*", "web,istio-system", "istio-system"}[r.rand.IntN(6)]; to != "" {
		s.annotations = map[string]string{"networking.istio.io/exportTo": to}
	}
}

func (s *service) instances() (all []instance) {
	for _, sl := range s.slices {
		all = append(all, sl.pods...)
	}
	return all
}

// change makes one change.
func (r *randomServices) change() {
	names := slices.Sorted(maps.Keys(r.all))
	s := r.all[names[r.rand.IntN(len(names))]]
	all := s.instances()
	what := []string{"pod added", "pod added", "pod removed", "pod moved", "health", "health", "slices", "ports", "target", "exportTo", "deleted and created", "all gone"}[r.rand.IntN(12)]
	switch what {
	case "pod added":
		i := r.instance(s)
		r.w.putPod(s.namespace, s.name, i)
		n := r.rand.IntN(len(s.slices))
		s.slices[n].pods = append(slices.Clone(s.slices[n].pods), i)
	case "pod removed", "pod moved", "health":
		if len(all) == 0 {
			return
		}
		n := r.rand.IntN(len(all))
		was := all[n]
		switch what {
		case "pod removed":
			all = slices.Delete(all, n, n+1)
		case "pod moved": // a pod that is rescheduled is another one
			all[n] = r.instance(s)
			r.w.putPod(s.namespace, s.name, all[n])
		default:
			r.health(s, &all[n])
			r.w.putPod(s.namespace, s.name, all[n])
		}
		r.split(s, all)
		if what != "health" {
			defer r.w.removePod(s.namespace, was)
		}
	case "slices":
		r.split(s, all)
	case "ports":
		s.ports = r.ports()
		r.w.putService(*s)
	case "target":
		s.ports = slices.Clone(s.ports)
		s.ports[0].at = 8000 + r.rand.IntN(1000)
		r.w.putService(*s)
	case "exportTo":
		r.export(s)
		r.w.putService(*s)
	case "deleted and created":
		r.w.remove(*s)
		delete(r.all, s.name)
		r.create()
		r.done[what]++
		return
	case "all gone":
		for _, i := range all {
			defer r.w.removePod(s.namespace, i)
		}
		s.slices = []slice{{}}
	}
	r.w.putSlices(*s)
	r.done[what]++
}

// want returns the addresses by port of each service that is served.
func (r *randomServices) want() map[string]map[int][]string {
	out := map[string]map[int][]string{}
	for _, s := range r.all {
		ports := map[int][]string{}
		for _, p := range s.ports {
			if p.protocol == "UDP" {
				continue
			}
			ports[p.number] = nil
			for _, i := range s.instances() {
				if i.ready() {
					ports[p.number] = append(ports[p.number], i.ip+":"+strconv.Itoa(p.at))
				}
			}
			slices.Sort(ports[p.number])
		}
		if len(ports) > 0 {
			out[s.namespace+"/"+s.name] = ports
		}
	}
	return out
}

// TestRandomServicesAreThoseOfTheirIstiod has a relay read an API server, and another one an istiod on it, over
// SERVICES_WORLDS random worlds (three if it is not set) of 20 services that change at random. After each step both have
// what the world has, and serve the same. SERVICES_SEED names a seed to begin with, so that SERVICES_WORLDS=1
// SERVICES_SEED=N runs one world again.
func TestRandomServicesAreThoseOfTheirIstiod(t *testing.T) {
	t.Parallel()
	worlds, seed := countFrom(t, "SERVICES_WORLDS", 3), 1
	if text := os.Getenv("SERVICES_SEED"); text != "" {
		seed = countFrom(t, "SERVICES_SEED", 1)
	} else if worlds > 3 {
		seed = 1000 + rand.IntN(1_000_000_000)
	}
	w := newCluster(t, "east")
	i := newNativeIstiod(t, w.k).start().ready()
	direct := relayOfServices(t, "direct", fromAPIServer(w.k), "{mode: discover}").start().ready()
	byIstiod := relayOfServices(t, "by-istiod", fromIstiod(i), "{mode: discover}").start().ready()
	one, other := dial(t, direct.xds), dial(t, byIstiod.xds)
	for n := range worlds {
		seed, start := seed+n, time.Now()
		r := &randomServices{w: w, rand: rand.New(rand.NewPCG(30, uint64(seed))), all: map[string]*service{}, made: 1000 * n, pods: 1000 * n, nodes: []string{""}, done: map[string]int{}}
		for range 4 {
			r.addNode()
		}
		same := func(when string) {
			t.Helper()
			want := r.want()
			eventually(t, fmt.Sprintf("seed %d: %s", seed, when), func() error {
				have, err := sameServices(one, other, tells, "default/kubernetes")
				if err != nil {
					return err
				}
				return hasAddresses(have, want)
			})
		}
		for range 20 {
			r.create()
		}
		same("both serve the same")
		for step := range 15 {
			for range 4 {
				r.change()
			}
			r.addNode() // for pods of the next step: an istiod builds an endpoint with the nodes that it knows, and never again
			same(fmt.Sprintf("both serve the same after step %d", step+1))
		}
		t.Logf("seed %d: %d services, %d pods, changes %v, %v", seed, len(r.all), r.pods-1000*n, r.done, time.Since(start).Round(time.Millisecond))
		for _, s := range r.all {
			w.remove(*s)
		}
	}
}

// hasAddresses compares the addresses by port of services.
func hasAddresses(have map[string]*networking.ServiceEntry, want map[string]map[int][]string) error {
	for name, w := range want {
		if have[name] == nil {
			return fmt.Errorf("%s is not served", name)
		}
		if h := addressesByPort(have[name]); !maps.EqualFunc(h, w, slices.Equal[[]string]) {
			return fmt.Errorf("%s has %v, want %v", name, h, w)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if want[name] == nil {
			return fmt.Errorf("%s is served: %v", name, have[name])
		}
	}
	return nil
}
