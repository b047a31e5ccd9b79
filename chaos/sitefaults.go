package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
)

// lack is what a source does not tell that it has, until a moment after.
type lack struct {
	keys  []int
	until time.Time
}

// do does a step of a round.
func (s *sites) do(f siteFault) error {
	begins := "ends"
	if !f.ends {
		begins = "begins"
	}
	switch f.kind {
	case "change":
		return s.change()
	case "promote":
		s.passing.Go(func() { s.promote(f) })
		return nil
	case "restore":
		return s.store()
	case "lease":
		return nil // at the end of the round
	case "freeze", "unfreeze", "rollback", "release", "burst", "sink release":
		s.passing.Go(func() { s.person(f) })
		return nil
	case "edit", "delete", "strip", "replace":
		if !f.ends {
			s.journal.count(f.kind)
			s.passing.Go(func() { s.somebody(f) })
		}
		return nil
	}
	if !f.ends {
		s.journal.count(f.kind)
	}
	s.journal.say("fault %s %s (%d)", f.kind, begins, f.dice[0]%12)
	switch f.kind {
	case "api-pause":
		s.pause(s.cluster.apiserver, f.ends)
	case "etcd-pause":
		s.pause(s.cluster.etcd, f.ends)
	case "api-kill":
		return s.crash(s.cluster.apiserver, f.ends)
	case "etcd-kill":
		return s.crash(s.cluster.etcd, f.ends)
	case "api-slow", "api-cut":
		return s.spoil(f)
	case "kill":
		return s.kill(f.dice[0]%siteRelays, f.ends, false)
	case "kill-disk":
		return s.kill(f.dice[0]%siteRelays, f.ends, true)
	case "prune":
		if !f.ends {
			return s.prune(f)
		}
	case "empty", "half", "gone":
		return s.lack(f)
	case "wipe":
		return s.wipe(f)
	case "other":
		other := s.relays[siteRelays]
		if !f.ends {
			return other.start()
		}
		return other.signal([]syscall.Signal{syscall.SIGKILL, syscall.SIGTERM}[f.dice[0]%2], true)
	default:
		return fmt.Errorf("there is no fault %q", f.kind)
	}
	return nil
}

func (s *sites) pause(p *program, ends bool) {
	s.storing.Lock()
	defer s.storing.Unlock()
	if ends {
		p.signal(syscall.SIGCONT)
	} else {
		p.signal(syscall.SIGSTOP)
	}
}

func (s *sites) crash(p *program, ends bool) error {
	s.storing.Lock()
	defer s.storing.Unlock()
	if ends {
		return p.start()
	}
	p.signal(syscall.SIGKILL)
	return nil
}

// spoil makes the links to the API server slow, all or one of them, or cuts one.
func (s *sites) spoil(f siteFault) error {
	links := s.links[f.dice[0]%siteRelays:][:1]
	if f.kind == "api-slow" && f.dice[1]%2 == 0 {
		links = s.links
	}
	for _, l := range links {
		var err error
		switch {
		case f.ends:
			err = l.heal()
		case f.kind == "api-cut":
			l.cut()
		default:
			err = l.poison("latency", "downstream", map[string]int{"latency": 200 + f.dice[2]%1500, "jitter": 200})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// kill kills a relay, or starts it again, without its disk if that is lost.
func (s *sites) kill(relay int, ends, lost bool) error {
	s.relaying.Lock()
	defer s.relaying.Unlock()
	r := s.relays[relay]
	if ends != s.down[relay] {
		return nil // somebody else has
	}
	s.down[relay] = !ends
	if ends && lost {
		return errors.Join(os.RemoveAll(r.stateDir()), r.start())
	}
	if ends {
		return r.start()
	}
	s.kills++
	return r.signal(syscall.SIGKILL, true)
}

// restart kills a relay and starts it again.
func (s *sites) restart(relay int) {
	relay %= siteRelays
	if err := errors.Join(s.kill(relay, false, false), s.kill(relay, true, false)); err != nil {
		s.stop(err)
	}
}

// change makes the next change of the world.
func (s *sites) change() error {
	var c change
	if !s.plan.decide(&c, nil) {
		return nil
	}
	if c.deletes {
		s.world.remove(c.source, c.key, 0)
		return nil
	}
	return s.world.put(c.source, c.key)
}

// prune has a source delete some resources at once, and half of the time kills the writer in the middle of deleting their
// objects.
func (s *sites) prune(f siteFault) error {
	source, n := f.dice[0]%len(s.upstreams), 0
	keys := slices.Sorted(maps.Keys(s.world.sources[source].items))
	for i := range keys {
		key := keys[(f.dice[1]+7*i)%len(keys)]
		if n == pruned || s.plan.size[source]*100 < 70*s.plan.of[source] {
			break
		}
		if s.plan.present[source][key] && s.plan.kinds[source][key%len(kinds)] > 1 && s.world.remove(source, key, 0) {
			s.plan.note(source, key, false)
			n++
		}
	}
	s.history.mu.Lock()
	before := s.history.deleted
	s.history.mu.Unlock()
	if n == 0 || f.dice[2]%2 == 0 {
		return nil
	}
	s.passing.Go(func() {
		if !s.history.await(s.ctx, 12*time.Second, func() bool { return s.history.deleted > before+f.dice[3]%5 }) {
			return
		}
		s.history.mu.Lock()
		holder := s.history.holder
		s.history.mu.Unlock()
		for i, r := range s.relays[:siteRelays] {
			if strings.Contains(holder, r.name+"_") || strings.HasPrefix(holder, r.name) {
				s.journal.fault("prune-kill", "%s is killed in the middle of pruning", r.name)
				s.restart(i)
			}
		}
	})
	return nil
}

// lack has an upstream come back empty or half empty, or not at all.
func (s *sites) lack(f siteFault) error {
	n := f.dice[0] % len(s.upstreams)
	u := s.upstreams[n]
	if f.kind == "gone" {
		if f.ends {
			return u.start()
		}
		u.stop()
		return nil
	}
	if !f.ends {
		l := &lack{until: time.Now().Add(f.lasts + 10*time.Second)}
		for key := range u.source.items {
			if f.kind == "empty" || lacksHalf(key) {
				l.keys = append(l.keys, key)
			}
		}
		s.mu.Lock()
		s.lacking[n] = l
		s.mu.Unlock()
	}
	u.restart(func(m *mood) { m.empty, m.half = f.kind == "empty" && !f.ends, f.kind == "half" && !f.ends })
	if !f.ends && f.dice[1]%3 == 0 {
		s.passing.Go(func() {
			if sleep(s.ctx, f.lasts/2) == nil {
				_ = s.order(f.dice[2], "release", u.name, "--all") // it may be refused
			}
		})
	}
	return nil
}

// wipe ends all relays and starts them without their states while an upstream is gone.
func (s *sites) wipe(f siteFault) error {
	u := s.upstreams[f.dice[0]%len(s.upstreams)]
	if f.ends {
		return u.start()
	}
	u.stop()
	s.relaying.Lock()
	defer s.relaying.Unlock()
	var wait sync.WaitGroup
	errs := make([]error, siteRelays)
	for n, r := range s.relays[:siteRelays] {
		if s.down[n] {
			errs[n] = os.RemoveAll(r.stateDir())
			continue
		}
		wait.Go(func() { // it may be paused
			errs[n] = errors.Join(r.signal(syscall.SIGCONT, false), r.signal(syscall.SIGTERM, true), os.RemoveAll(r.stateDir()))
		})
	}
	wait.Wait() // so that none has something for another one
	for n, r := range s.relays[:siteRelays] {
		if !s.down[n] {
			errs[n] = errors.Join(errs[n], r.start())
		}
	}
	return errors.Join(errs...)
}

// person gives the orders of a step.
func (s *sites) person(f siteFault) {
	upstream := s.upstreams[f.dice[1]%len(s.upstreams)].name
	switch f.kind {
	case "rollback":
		s.rollback(f.dice[0], upstream)
	case "sink release":
		s.sinkRelease(f.dice[0])
	case "release":
		_ = s.order(f.dice[0], "release", upstream, "--all") // each may be refused
	case "burst":
		var wait sync.WaitGroup
		for n := range siteRelays {
			verb := []string{"freeze", "unfreeze"}[(f.dice[2]>>n)%2]
			wait.Go(func() { _ = s.order(f.dice[0]+n, verb, s.upstreams[(f.dice[1]+n)%len(s.upstreams)].name) })
		}
		wait.Wait()
	default:
		_ = s.order(f.dice[0], f.kind, upstream)
	}
}

// foreign creates an object of somebody else.
func (s *sites) foreign(key int) error {
	by := fmt.Sprintf("change-%d", s.numbers.Add(1))
	s.history.mine(by)
	k := kinds[key%len(kinds)]
	namespace, name, _ := strings.Cut(keyName(key), "/")
	spec, err := protojson.Marshal(makeBody("somebody", key, 0))
	if err != nil {
		return err
	}
	return s.cluster.apply(s.ctx, pathOf(key), fmt.Appendf(nil, `{"apiVersion": "%s/v1", "kind": %q, "metadata": {"name": %q, "namespace": %q, "annotations": {%q: %q}}, "spec": %s}`,
		k.group, k.name, name, namespace, byAnnotation, by, spec))
}

// somebody changes or deletes an object, as a person with kubectl does.
func (s *sites) somebody(f siteFault) {
	s.history.mu.Lock()
	keys := slices.Sorted(maps.Keys(s.history.objects))
	var key int
	var o siteObject
	if len(keys) > 0 {
		key = keys[f.dice[0]%len(keys)]
		o = s.history.objects[key]
	}
	s.history.mu.Unlock()
	if o.uid == "" || f.kind == "strip" && o.sink == "" {
		return
	}
	by := fmt.Sprintf("change-%d", s.numbers.Add(1))
	s.history.mine(by)
	patch := func(labels string) error {
		return s.cluster.ask(s.ctx, http.MethodPatch, pathOf(key)+"?fieldManager=kubectl-edit", "application/merge-patch+json",
			fmt.Appendf(nil, `{"metadata": {"uid": %q, "labels": %s, "annotations": {%q: %q}}}`, o.uid, labels, byAnnotation, by))
	}
	var err error
	switch f.kind {
	case "edit":
		err = patch(`{"content": "edited"}`)
	case "strip":
		err = patch(fmt.Sprintf(`{%q: null}`, sinkLabel))
	default:
		s.history.mine(o.uid)
		err = s.cluster.ask(s.ctx, http.MethodDelete, pathOf(key), "application/json",
			fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": %q}}`, o.uid))
		if err == nil && f.kind == "replace" {
			err = s.foreign(key)
		}
	}
	s.journal.say("somebody: %s of %s (%s): %v", f.kind, describe(key), by, err)
}

// heal waits until the API server serves. The steps of a round end their faults themselves.
func (s *sites) heal() error { return s.cluster.await(s.ctx, "/readyz") }

// converge waits until all clients have what they are to have, and the cluster as well (S5). It returns how long the
// latter took.
func (s *sites) converge(after string, within, more time.Duration) (time.Duration, error) {
	began := time.Now()
	err := deadline(s.ctx, within, func() *violation {
		expected := s.world.expected()
		for n, c := range s.clients {
			if has := c.view(); !maps.Equal(has, expected) {
				return differs(wrong, fmt.Sprintf("%s of %s after %s", c.name, s.relays[n%siteRelays].name, after), s.world, has, expected)
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	err = deadline(s.ctx, within+more-time.Since(began), func() *violation {
		bad := s.shows(s.world.expected())
		if bad != nil && time.Since(began) > quietAgrees { // after an adoption or a restore deletions may be held
			s.releaseSink()
		}
		return bad
	})
	return time.Since(began), err
}

// differs describes the first difference.
func differs(invariant, who string, w *world, has, expected map[int]content) *violation {
	for key := range w.keys {
		have, is := has[key]
		want, wanted := expected[key]
		if have != want || is != wanted {
			return &violation{invariant, who, key, fmt.Sprintf("has %v %+v, and is to have %v %+v; it has %d and is to have %d", is, have, wanted, want, len(has), len(expected))}
		}
	}
	return nil
}

// shows compares the cluster with what the view shows.
func (s *sites) shows(expected map[int]content) *violation {
	s.history.mu.Lock()
	defer s.history.mu.Unlock()
	bad := func(key int, format string, args ...any) *violation {
		return &violation{notOurs, "the cluster", key, fmt.Sprintf(format, args...)}
	}
	for key := range s.world.keys {
		o, is := s.history.objects[key]
		want, wanted := expected[key]
		switch {
		case is && o.sink != sinkName:
			continue // it is of somebody else
		case is && !wanted && (o.upstreams == "" || strings.Contains(o.path, otherSite)):
			continue // it was adopted and not written since, or another site's relay has written it: no sink deletes these
		case is != wanted:
			return bad(key, "there is an object: %v, want %v: %+v", is, wanted, o)
		case !is:
			continue
		}
		marker := marker(s.world.sources[want.source].name, key, want.seq)
		if o.marker != marker || o.content != labelOf(marker) {
			return bad(key, "it has %q and the label %q, want %q", o.marker, o.content, marker)
		}
		spec, err := protojson.Marshal(makeBody(s.world.sources[want.source].name, key, want.seq))
		var have, made any
		if err = errors.Join(err, json.Unmarshal([]byte(o.spec), &have), json.Unmarshal(bytes.TrimSpace(spec), &made)); err != nil || !reflect.DeepEqual(have, made) {
			return bad(key, "its spec is %s, want %s (%v)", o.spec, spec, err)
		}
	}
	return nil
}
