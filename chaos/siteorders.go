package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	// orderPatience bounds an order, and promotionPatience all runs of a promotion or adoption together.
	orderPatience     = 20 * time.Second
	promotionPatience = 2 * time.Minute
)

// command runs a command of the relay, until ctx ends.
func (s *sites) command(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, s.binary, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("relay %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// ask runs a command about a running relay.
func (s *sites) ask(r *relay, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(s.ctx, orderPatience)
	defer cancel()
	args = append(args, "--admin", r.admin)
	return s.command(ctx, args...)
}

// order gives an order to one replica, and notes it if the replica acknowledges it.
func (s *sites) order(relay int, verb, upstream string, more ...string) error {
	r := s.relays[relay%siteRelays]
	reason := fmt.Sprintf("order-%d", s.numbers.Add(1))
	if verb == "release" {
		s.releases(upstream)
	}
	s.journal.count("order " + verb)
	out, err := s.ask(r, append([]string{verb, upstream, "--reason", reason, "--socket", filepath.Join(r.stateDir(), "admin.sock")}, more...)...)
	if err != nil {
		s.journal.say("%s %s at %s is refused (%s): %s", verb, upstream, r.name, reason, tail(err.Error()))
		return err
	}
	s.journal.count("order " + verb + ", acknowledged")
	s.journal.say("%s %s at %s is acknowledged (%s): %s", verb, upstream, r.name, reason, tail(out))
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case verb == "unfreeze": // it has no reason: unfreezeAll looks whether it counts
	case strings.Contains(out, "on this replica alone"): // of two orders that do not know of each other, one counts
		s.journal.count("order " + verb + ", not written yet")
	default:
		s.acked[reason] = verb + " " + upstream + " at " + r.name
	}
	return nil
}

func tail(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	return text[max(0, len(text)-300):]
}

// releases notes that what an upstream lacks, or has lacked a moment ago, may go.
func (s *sites) releases(upstream string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n, u := range s.upstreams {
		if l := s.lacking[n]; u.name == upstream && l != nil && time.Now().Before(l.until) {
			s.history.release(n, l.keys, l.until.Add(releaseSlack))
		}
	}
}

// rollback goes back to the revision before the newest one.
func (s *sites) rollback(relay int, upstream string) {
	out, err := s.ask(s.relays[relay%siteRelays], "history", upstream, "-o", "json")
	if err != nil {
		return
	}
	var revisions []struct{ ID uint64 }
	if err := json.Unmarshal([]byte(out), &revisions); err != nil || len(revisions) < 2 {
		s.journal.say("rollback %s: the history can not be used: %v: %s", upstream, err, tail(out))
		return
	}
	_ = s.order(relay, "rollback", upstream, "--to", fmt.Sprint(revisions[min(1, len(revisions)-1)].ID)) // it may be refused
}

// releaseSink releases what the guard of the sink holds at the relay that writes.
func (s *sites) releaseSink() {
	for n := range siteRelays {
		s.sinkRelease(n)
	}
}

// sinkRelease releases what the guard of the sink holds.
func (s *sites) sinkRelease(relay int) {
	r := s.relays[relay%siteRelays]
	out, err := s.ask(r, "sink", sinkName, "-o", "json")
	if err != nil {
		return
	}
	var all []struct {
		Leader bool
		Held   *struct{ ID string }
	}
	if err := json.Unmarshal([]byte(out), &all); err != nil || len(all) == 0 || all[0].Held == nil || !all[0].Leader {
		return
	}
	s.journal.count("order sink release")
	out, err = s.ask(r, "release", "sink/"+sinkName, "--hold", all[0].Held.ID, "--socket", filepath.Join(r.stateDir(), "admin.sock"))
	s.journal.say("sink release %s at %s: %v %s", all[0].Held.ID, r.name, err, tail(out))
}

// promote promotes the sink and adopts it again, by commands that are killed and run again. Meanwhile a relay is killed, the
// site may lose the promotion, and relays that were away come back.
func (s *sites) promote(f siteFault) {
	ctx, cancel := context.WithTimeout(s.ctx, promotionPatience)
	defer cancel()
	loses, away := []string{"restore", "lease", ""}[f.dice[3]%3], s.leave(f)
	if loses == "restore" {
		if err := s.store(); err != nil {
			s.stop(err)
		}
	}
	for n := range f.dice[0] % 3 {
		killed, stopped := context.WithTimeout(ctx, time.Duration(200+f.dice[1+n]%18_000)*time.Millisecond)
		out, err := s.command(killed, s.sink("promote")...)
		stopped()
		s.journal.fault("promotion-kill", "the command that promotes is killed, and a relay: %v %s", err == nil, tail(out))
		s.restart(f.dice[2] + siteRelays - 1) // it is not away
	}
	s.untilDone(ctx, s.sink("promote"))
	s.standStill(ctx)
	if sleep(ctx, time.Duration(f.dice[3]%3000)*time.Millisecond) != nil {
		return
	}
	if err := s.remember(ctx, loses, away); err != nil {
		s.stop(err)
		return
	}
	s.giveBack(ctx, f)
}

// sink returns the arguments of a command for the sink that needs no relay.
func (s *sites) sink(verb string) []string {
	return []string{"sink", verb, sinkName, "--kubeconfig", filepath.Join(s.dir, "person.kubeconfig"), "--yes"}
}

// standStill tells the model that nobody writes any more.
func (s *sites) standStill(ctx context.Context) {
	s.untilAsked(ctx, http.MethodPatch, "/api/v1/namespaces/istio-system/configmaps/chaos-promoted?fieldManager=somebody&force=true", "application/apply-patch+yaml",
		fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "chaos-promoted"}, "data": {"number": "%d"}}`, s.numbers.Add(1)))
}

// giveBack adopts the sink, and ends its freeze.
func (s *sites) giveBack(ctx context.Context, f siteFault) {
	for n := range f.dice[1] % 2 {
		killed, stopped := context.WithTimeout(ctx, time.Duration(30+f.dice[2+n]%500)*time.Millisecond)
		out, err := s.command(killed, s.sink("adopt")...)
		stopped()
		s.journal.fault("adoption-kill", "the command that adopts is killed: %v %s", err == nil, tail(out))
	}
	if !s.history.await(ctx, time.Second, func() bool { return s.history.phase == adopted }) { // else the command was killed after it had done everything
		s.untilDone(ctx, s.sink("adopt"))
	}
	if sleep(ctx, time.Duration(f.dice[0]%3000)*time.Millisecond) != nil {
		return
	}
	s.unfreezeSink(ctx)
}

// unfreezeSink ends the freeze of the sink, at any relay that answers.
func (s *sites) unfreezeSink(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		r := s.relays[n%siteRelays]
		out, err := s.ask(r, "unfreeze", "sink/"+sinkName, "--socket", filepath.Join(r.stateDir(), "admin.sock"))
		s.journal.say("sink unfreeze at %s: %v %s", r.name, err, tail(out))
		if s.history.await(ctx, time.Second, func() bool { return s.history.phase == "" }) {
			return
		}
	}
}

// untilAsked makes a request of the API server until it succeeds, or finds nothing to delete.
func (s *sites) untilAsked(ctx context.Context, method, path, contentType string, body []byte) {
	for ctx.Err() == nil {
		err := s.cluster.ask(ctx, method, path, contentType, body)
		if err == nil || strings.Contains(err.Error(), "404") || sleep(ctx, 500*time.Millisecond) != nil {
			return
		}
	}
}

// untilDone runs a command again and again until it succeeds.
func (s *sites) untilDone(ctx context.Context, args []string) {
	for {
		out, err := s.command(ctx, args...)
		s.journal.say("%s: %v %s", args[1], err == nil, tail(out))
		if err == nil {
			return
		}
		if sleep(ctx, 500*time.Millisecond) != nil {
			if s.ctx.Err() == nil {
				s.stop(&violation{afterPromotion, "relay " + strings.Join(args, " "), -1, fmt.Sprintf("it has not succeeded within %v: %v", promotionPatience, err)})
			}
			return
		}
	}
}

// replicaStatus is what a relay tells of itself.
type replicaStatus struct {
	Self    bool
	Follows uint64
	Lacks   map[string]string
}

// upstreamStatus is what a relay tells of an upstream.
type upstreamStatus struct {
	Name   string
	Frozen *struct{}
	Held   *struct{ Removals int }
}

// status returns what a relay tells of itself, and of its upstreams.
func (s *sites) status(r *relay) (st replicaStatus, ups []upstreamStatus, err error) {
	var all []replicaStatus
	for path, to := range map[string]any{"/debug/replicas": &all, "/debug/upstreams": &ups} {
		text, err := r.get(s.ctx, path)
		if err == nil {
			err = json.Unmarshal(text, to)
		}
		if err != nil {
			return st, nil, err
		}
	}
	for _, one := range all {
		if one.Self {
			return one, ups, nil
		}
	}
	return st, nil, errors.New("it does not tell of itself")
}

// agree checks that the replicas follow the same orders (S3).
func (s *sites) agree() error {
	return deadline(s.ctx, s.scenario.within(quietAgrees+adminPoll), func() *violation {
		s.history.mu.Lock()
		last, lacks, frozen := uint64(0), s.history.lacks, s.history.frozenNow()
		for _, e := range s.history.orders {
			last = max(last, e.Counter)
		}
		s.history.mu.Unlock()
		if lacks {
			return &violation{forgotten, "the orders", -1, "they are lacking since etcd was restored"}
		}
		for _, r := range s.relays[:siteRelays] {
			st, ups, err := s.status(r)
			if err != nil {
				return &violation{disagree, r.name, -1, err.Error()}
			}
			if st.Follows < last {
				return &violation{disagree, r.name, -1, fmt.Sprintf("it follows order %d, and there is %d", st.Follows, last)}
			}
			for _, u := range ups {
				if st.Lacks[u.Name] != "" {
					s.journal.count("order that a replica can not follow")
				}
				if is := u.Frozen != nil; is != (frozen[u.Name] != "") {
					return &violation{disagree, r.name, -1, fmt.Sprintf("upstream %s is frozen: %t, and the orders have %q", u.Name, is, frozen[u.Name])}
				}
			}
		}
		return nil
	})
}

// unfreezeAll ends all freezes and rollbacks, and releases what guards hold: now upstreams tell the truth.
func (s *sites) unfreezeAll() error {
	err := deadline(s.ctx, s.scenario.within(orderPatience), func() *violation {
		n := int(s.numbers.Add(1))
		for upstream, kind := range s.history.frozen() {
			if err := s.order(n, "unfreeze", upstream); err != nil {
				return &violation{disagree, s.relays[n%siteRelays].name, -1, fmt.Sprintf("upstream %s has a %s, and unfreeze is refused: %v", upstream, kind, err)}
			}
			// The model is to have the record, too.
			if !s.history.await(s.ctx, time.Second, func() bool { return s.history.frozenNow()[upstream] == "" }) {
				return &violation{forgotten, s.relays[n%siteRelays].name, -1, fmt.Sprintf("upstream %s has a %s although unfreeze was acknowledged", upstream, kind)}
			}
		}
		s.releaseSink()
		for i, r := range s.relays[:siteRelays] {
			_, ups, err := s.status(r)
			if err != nil {
				return &violation{disagree, r.name, -1, err.Error()}
			}
			for _, u := range ups {
				if u.Held != nil {
					err = s.order(i, "release", u.Name, "--all")
					_ = sleep(s.ctx, time.Second)
					return &violation{disagree, r.name, -1, fmt.Sprintf("upstream %s is still held: %+v: %v", u.Name, *u.Held, err)}
				}
			}
		}
		return nil
	})
	return err
}
