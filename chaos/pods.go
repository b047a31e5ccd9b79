package main

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
)

const (
	podNamespace = "pods"
	podServices  = 6 // of an API server
	maxPods      = 5 // of a Service
	podLabel     = "chaos.example/pod"
	podsOf       = "/pods"
	servicesOf   = "/services"
	slicesOf     = "discovery.k8s.io/endpointslices"
	nodesOf      = "/nodes"
	// podOps is how many of the last changes of a Service are told when it is wrong.
	podOps = 12
)

// podService is a Service: number n of a source.
type podService struct{ source, n int }

// pod is a ready address of a Service, and the label that its pod has.
type pod struct {
	name    string
	address string
	label   string
	ready   bool
	since   time.Time // of the last change
}

// podWorld is the truth of the Services of all API servers. It is safe for use by several goroutines.
type podWorld struct {
	names    []string // of the sources
	clusters []*cluster

	mu       sync.Mutex             // guards all below
	services map[podService]*podSet // the sets; nobody adds one
	// given are the addresses that there have ever been, and taken when one was taken away, or its pod changed.
	given   map[string]podService
	taken   map[string]time.Time
	sources []podSource
	numbers int           // of pods and addresses that there have been
	changes int           // so far
	longest time.Duration // that a client had something else, of a source in contact
	within  time.Duration // how long it may
}

type podSet struct {
	pods []*pod
	ops  []string
}

// podSource tells whether a source is in contact.
type podSource struct {
	faults int
	// calm is when the last fault ended, and fresh when the newest pod came.
	calm, fresh time.Time
	// steady: since the last fault all clients have come to hold all, and a pod that came after it.
	steady bool
}

func newPodWorld(names []string) *podWorld {
	p := &podWorld{
		names: names, services: map[podService]*podSet{}, given: map[string]podService{}, taken: map[string]time.Time{}, sources: make([]podSource, len(names)), within: promptness,
	}
	for source := range names {
		for n := range podServices {
			of := podService{source, n}
			set := &podSet{}
			p.services[of] = set
			for range 2 {
				p.come(of, set)
			}
		}
	}
	return p
}

// come adds a pod. The caller holds the lock, as with all that changes a set.
func (p *podWorld) come(of podService, set *podSet) *pod {
	p.numbers++
	x := &pod{name: fmt.Sprintf("%s-%d", p.name(of), p.numbers), ready: true}
	set.pods = append(set.pods, x)
	p.move(of, x)
	p.sources[of.source].fresh = x.since
	return x
}

// move gives a pod an address that nobody had.
func (p *podWorld) move(of podService, x *pod) {
	p.numbers++
	if x.address != "" {
		p.taken[x.address] = time.Now()
	}
	x.address = fmt.Sprintf("10.%d.%d.%d", 100+p.numbers>>16, p.numbers>>8&255, p.numbers&255)
	x.label, x.since = fmt.Sprintf("%s.%d", x.name, p.numbers), time.Now()
	p.given[x.address] = of
}

func (p *podWorld) name(of podService) string { return fmt.Sprintf("%s-%d", p.names[of.source], of.n) }

// parsePodService returns the Service of a ServiceEntry.
func (p *podWorld) parsePodService(name string) (of podService, ok bool) {
	text, ok := strings.CutPrefix(name, podNamespace+"/synthetic-")
	i := strings.LastIndexByte(text, '-')
	if !ok || i < 0 {
		return of, false
	}
	of.source = slices.Index(p.names, text[:i])
	n, err := strconv.Atoi(text[i+1:])
	of.n = n
	return of, of.source >= 0 && err == nil && p.services[of] != nil
}

// podChange is a change of a pod.
type podChange struct {
	source int
	dice   [3]int
}

// change changes a pod, and the objects of its server.
func (p *podWorld) change(c podChange) {
	p.mu.Lock()
	defer p.mu.Unlock()
	of := podService{c.source, c.dice[0] % podServices}
	set := p.services[of]
	p.changes++
	op := c.dice[1] % 5
	if len(set.pods) == 0 || op == 0 && len(set.pods) < maxPods {
		x := p.come(of, set)
		p.note(set, "%s comes at %s", x.name, x.address)
		p.follow(of, set, nil)
		return
	}
	i := c.dice[2] % len(set.pods)
	x := set.pods[i]
	switch op {
	case 0, 1:
		set.pods = slices.Delete(set.pods, i, i+1)
		p.taken[x.address] = time.Now()
		p.note(set, "%s at %s goes", x.name, x.address)
		p.follow(of, set, x)
		return
	case 2:
		x.ready, x.since = !x.ready, time.Now()
		p.taken[x.address] = x.since
		p.note(set, "%s at %s is ready: %t", x.name, x.address, x.ready)
	case 3:
		p.move(of, x)
		p.note(set, "%s moves to %s", x.name, x.address)
	case 4:
		p.numbers++
		x.label, x.since = fmt.Sprintf("%s.%d", x.name, p.numbers), time.Now()
		p.taken[x.address] = x.since
		p.note(set, "%s at %s gets the label %s", x.name, x.address, x.label)
	}
	p.follow(of, set, nil)
}

func (p *podWorld) note(set *podSet, format string, args ...any) {
	set.ops = append(set.ops, time.Now().Format("05.000 ")+fmt.Sprintf(format, args...))
	set.ops = set.ops[max(0, len(set.ops)-podOps):]
}

// follow brings the objects of a Service to the truth, unless the server has gone astray. gone is a pod that is no more.
func (p *podWorld) follow(of podService, set *podSet, gone *pod) {
	c := p.clusters[of.source]
	if c.astray {
		return
	}
	for _, x := range set.pods {
		c.fake.Put(podsOf, podObject(x))
	}
	c.fake.Put(slicesOf, sliceObject(p.name(of), set.pods))
	if gone != nil {
		c.fake.Remove(podsOf, podNamespace+"/"+gone.name)
	}
}

// restore gives a server all that it is to have.
func (p *podWorld) restore(source int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.clusters[source]
	c.fake.Put(nodesOf, map[string]any{"metadata": map[string]any{"name": "node", "labels": map[string]any{"topology.kubernetes.io/region": "region", "topology.kubernetes.io/zone": "zone"}}})
	for n := range podServices {
		of := podService{source, n}
		c.fake.Put(servicesOf, serviceObject(p.name(of)))
		p.follow(of, p.services[of], nil)
	}
}

// trouble notes that a fault begins on sources, or ends.
func (p *podWorld) trouble(sources []int, begins bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range sources {
		s := &p.sources[n]
		if s.steady = false; begins {
			s.faults++
		} else {
			s.faults--
		}
		s.calm = time.Now()
	}
}

// podView is what a client sees of Services: labels by address.
type podView map[podService]map[string]string

// read returns the Service that an element is of, and its addresses. is is false for all else.
func (p *podWorld) read(element *anypb.Any) (of podService, held map[string]string, is bool, err error) {
	if p == nil || !bytes.Contains(element.GetValue(), []byte("/synthetic-")) {
		return of, nil, false, nil
	}
	r, body := &mcp.Resource{}, &networking.ServiceEntry{}
	if err := proto.Unmarshal(element.Value, r); err != nil {
		return of, nil, false, fmt.Errorf("an element does not decode: %w", err)
	}
	if of, is = p.parsePodService(r.GetMetadata().GetName()); !is {
		return of, nil, false, nil
	}
	if err := proto.Unmarshal(r.GetBody().GetValue(), body); err != nil {
		return of, nil, true, fmt.Errorf("%s does not decode: %w", p.name(of), err)
	}
	held = map[string]string{}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range body.Endpoints {
		held[e.Address] = e.Labels[podLabel]
		if whose, given := p.given[e.Address]; !given || whose != of {
			return of, held, true, fmt.Errorf("%s has the address %s, which its API server has never given it", p.name(of), e.Address)
		}
	}
	return of, held, true, nil
}

// lag is a difference between what a client holds and the truth.
type lag struct {
	of    podService
	text  string
	since time.Duration
}

// lags returns what a client has not, or still has. The caller holds the lock.
func (p *podWorld) lags(source int, view podView, now time.Time) (all []lag) {
	for n := range podServices {
		of := podService{source, n}
		held, want := view[of], map[string]bool{}
		for _, x := range p.services[of].pods {
			if !x.ready {
				continue
			}
			want[x.address] = true
			if label, has := held[x.address]; !has {
				all = append(all, lag{of, "lacks " + x.address, now.Sub(x.since)})
			} else if label != x.label {
				all = append(all, lag{of, fmt.Sprintf("has %s with the label %q, not %q", x.address, label, x.label), now.Sub(x.since)})
			}
		}
		for _, address := range slices.Sorted(maps.Keys(held)) {
			if !want[address] {
				all = append(all, lag{of, "still has " + address, now.Sub(p.taken[address])})
			}
		}
	}
	return all
}

// check returns what is wrong with what a client sees, when everything is to be right.
func (p *podWorld) check(who string, view podView) *violation {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for source := range p.names {
		if all := p.lags(source, view, time.Now()); len(all) > 0 {
			return p.violated(who, all[0])
		}
	}
	return nil
}

func (p *podWorld) violated(who string, l lag) *violation {
	return &violation{unreached, who, -1, fmt.Sprintf("Service %s: %s, %v after that changed; its last changes: %s", p.name(l.of), l.text, l.since.Round(time.Millisecond), strings.Join(p.services[l.of].ops, "; "))}
}

// look compares what clients see with the truth, of the sources in contact.
func (p *podWorld) look(views map[string]podView) *violation {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for source := range p.names {
		s := &p.sources[source]
		if s.faults > 0 {
			continue
		}
		differs := false
		for who, view := range views {
			for _, l := range p.lags(source, view, now) {
				if differs = true; !s.steady {
					break
				}
				if p.longest = max(p.longest, l.since); l.since > p.within {
					return p.violated(who, l)
				}
			}
		}
		s.steady = s.steady || !differs && s.fresh.After(s.calm)
	}
	return nil
}
