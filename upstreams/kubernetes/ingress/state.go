package ingress

import (
	"reflect"
	"slices"

	"github.com/zeebo/xxh3"

	"meshrelay/mirror"
)

// Input is a kind from which outputs are made.
type Input int

// The inputs.
const (
	Ingresses Input = iota
	Classes
	Services
	inputs
)

// State has the inputs of one cluster, and finds the outputs that a change of an input changes. The cost of a
// change grows with the number of Ingresses that have a host of the changed object. Only one method may run
// at a time.
type State struct {
	options Options
	synced  [inputs]bool

	ingresses map[Name]*entry
	classes   map[string]string // controllers
	services  map[Name][]Port

	hosts     map[string]*host
	ofClass   index[string, Name] // the Ingresses that name a class
	ofService index[Name, Name]   // the converted Ingresses that name a port of a Service

	// claims are the hosts by the names that their VirtualServices would have. Most names have one host.
	claims map[Name][]string
	// outputs are hashes of the outputs that Flush has returned.
	outputs map[mirror.Key]xxh3.Uint128
	buffer  []byte // for the next hash

	changedIngresses set[Name]
	changedHosts     set[string]
	changedOptions   bool
}

// host is a host of converted Ingresses.
type host struct {
	ingresses set[Name]
	claim     Name // the name of its VirtualService, unless another host has it
	output    Name // of its VirtualService
}

// New returns a State without inputs.
func New(o Options) *State {
	o.setDefaults()
	return &State{
		options:   o,
		ingresses: map[Name]*entry{}, classes: map[string]string{}, services: map[Name][]Port{},
		hosts: map[string]*host{}, ofClass: index[string, Name]{}, ofService: index[Name, Name]{},
		claims: map[Name][]string{}, outputs: map[mirror.Key]xxh3.Uint128{},
		changedIngresses: set[Name]{}, changedHosts: set[string]{},
	}
}

// SetOptions changes the options.
func (s *State) SetOptions(o Options) {
	o.setDefaults()
	if o == s.options {
		return
	}
	for _, e := range s.ingresses {
		s.unlink(e) // the outputs of the old options change
	}
	s.options, s.changedOptions = o, true
	for _, e := range s.ingresses {
		s.link(e)
	}
}

// Synced notes that the State has all objects of an input.
func (s *State) Synced(i Input) { s.synced[i] = true }

// SetIngress adds an Ingress, or changes it.
func (s *State) SetIngress(i *Ingress) {
	if old := s.ingresses[i.Name]; old != nil {
		if reflect.DeepEqual(old.Ingress, i) {
			return
		}
		s.removeIngress(old)
	}
	e := newEntry(i)
	s.ingresses[i.Name] = e
	if i.Spec.ClassName != nil {
		s.ofClass.add(*i.Spec.ClassName, i.Name)
	}
	s.link(e)
}

func (s *State) removeIngress(e *entry) {
	s.unlink(e)
	if e.Spec.ClassName != nil {
		s.ofClass.remove(*e.Spec.ClassName, e.Name)
	}
	delete(s.ingresses, e.Name)
}

// SetClass adds an IngressClass, or changes it.
func (s *State) SetClass(c *Class) {
	s.classes[c.Name] = c.Controller
	s.classChanged(c.Name)
}

func (s *State) classChanged(name string) {
	for ing := range s.ofClass[name] {
		if e := s.ingresses[ing]; e.converted != s.options.converts(e.Ingress, s.controller) {
			s.unlink(e)
			s.link(e)
		}
	}
}

// SetService adds a Service, or changes it.
func (s *State) SetService(v *Service) {
	if old, ok := s.services[v.Name]; !ok || !slices.Equal(old, v.Ports) {
		s.services[v.Name] = v.Ports
		s.serviceChanged(v.Name)
	}
}

func (s *State) serviceChanged(name Name) {
	for ing := range s.ofService[name] {
		s.change(s.ingresses[ing])
	}
}

// Remove removes an object, if it exists.
func (s *State) Remove(i Input, n Name) {
	switch i {
	case Ingresses:
		if e := s.ingresses[n]; e != nil {
			s.removeIngress(e)
		}
	case Classes:
		delete(s.classes, n.Name)
		s.classChanged(n.Name)
	case Services:
		delete(s.services, n)
		s.serviceChanged(n)
	}
}

func (s *State) controller(class string) (string, bool) {
	c, ok := s.classes[class]
	return c, ok
}

func (s *State) port(service Name, port string) (int32, bool) {
	for _, p := range s.services[service] {
		if p.Name == port {
			return p.Number, true
		}
	}
	return 0, false
}

// link adds a converted Ingress to its hosts and Services.
func (s *State) link(e *entry) {
	if e.converted = s.options.converts(e.Ingress, s.controller); !e.converted {
		return
	}
	for name := range e.hosts() {
		h := s.hosts[name]
		if h == nil {
			h = &host{ingresses: set[Name]{}}
			s.hosts[name] = h
		}
		h.ingresses[e.Name] = struct{}{}
	}
	for v := range e.services() {
		s.ofService.add(v, e.Name)
	}
	s.change(e)
}

// unlink undoes link.
func (s *State) unlink(e *entry) {
	if !e.converted {
		return
	}
	s.change(e)
	for name := range e.hosts() {
		delete(s.hosts[name].ingresses, e.Name)
	}
	for v := range e.services() {
		s.ofService.remove(v, e.Name)
	}
	e.converted = false
}

// change marks all outputs of an Ingress as changed.
func (s *State) change(e *entry) {
	s.changedIngresses[e.Name] = struct{}{}
	for name := range e.hosts() {
		s.changedHosts[name] = struct{}{}
	}
}
