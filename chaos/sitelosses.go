package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// changesMeanwhile is how many resources change while a sink without a Lease is blocked.
const changesMeanwhile = 5

// forget begins anew, with an etcd that was killed and is about to be restored. That ends no promotion.
func (h *siteHistory) forget() {
	h.reading.Lock() // all is taken that it has told
	defer h.reading.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.revision, h.restored, h.objects, h.lacks = 0, math.MaxInt64, map[int]siteObject{}, len(h.orders) > 0
	h.holder, h.holdAll = "", false // what it tells counts once a writer has read it
}

// judge tells which revision the restored etcd began with.
func (h *siteHistory) judge(revision int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.restored = revision
	h.world.journal.say("etcd is restored, to revision %d", revision)
}

// data is where etcd keeps all, and past where a copy of that is kept.
func (c *site) data() string { return filepath.Join(c.dir, "etcd") }
func (c *site) past() string { return filepath.Join(c.dir, "etcd-past") }

// store keeps a copy of what etcd has, which is down for that.
func (c *site) store() error {
	c.etcd.signal(syscall.SIGKILL)
	return errors.Join(os.RemoveAll(c.past()), os.CopyFS(c.past(), os.DirFS(c.data())), c.etcd.start())
}

// restore has etcd begin anew with the copy, and tells a history.
func (c *site) restore(ctx context.Context, h *siteHistory) error {
	c.apiserver.signal(syscall.SIGKILL)
	c.etcd.signal(syscall.SIGKILL)
	h.forget()
	if err := errors.Join(os.RemoveAll(c.data()), os.Rename(c.past(), c.data()), c.etcd.start()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		revision, err := c.revision(ctx)
		if err == nil {
			h.judge(revision) // nobody else writes into etcd
			return c.apiserver.start()
		}
		if sleep(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("etcd does not tell its revision: %w: its log is %s", err, c.etcd.log.path)
		}
	}
}

// revision returns the present revision of etcd.
func (c *site) revision(ctx context.Context) (int64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.etcdURL+"/v3/kv/range", bytes.NewReader([]byte(`{"key": "AA=="}`)))
	if err != nil {
		return 0, err
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var answer struct{ Header struct{ Revision string } }
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return 0, err
	}
	return strconv.ParseInt(answer.Header.Revision, 10, 64)
}

func (s *sites) store() error {
	s.storing.Lock()
	defer s.storing.Unlock()
	return s.cluster.store()
}

func (s *sites) restore() error {
	s.journal.fault("restore", "etcd is restored")
	s.storing.Lock()
	defer s.storing.Unlock()
	return s.cluster.restore(s.ctx, s.history)
}

func (s *sites) loseLease(ctx context.Context) {
	s.journal.fault("lease-deleted", "somebody deletes the Lease of the sink")
	s.untilAsked(ctx, http.MethodDelete, "/apis/coordination.k8s.io/v1/namespaces/istio-system/leases/meshrelay-sink-"+sinkName, "", nil)
}

// lose has a site that is not promoted lose what was written since store, or the Lease. All is quiet. In the end it has what is
// desired again (S5). Without the Lease nobody writes before an order (S2).
func (s *sites) lose(f siteFault) error {
	if f.kind == "restore" {
		if err := s.restore(); err != nil {
			return err
		}
		_, err := s.settle()
		return err
	}
	ctx, cancel := context.WithTimeout(s.ctx, promotionPatience)
	defer cancel()
	s.loseLease(ctx)
	if err := s.tell(ctx, "blocked", 0, 1, 2); err != nil {
		return err
	}
	s.standStill(ctx)
	for range changesMeanwhile {
		if err := s.change(); err != nil {
			return err
		}
	}
	s.somebody(siteFault{kind: "delete", dice: f.dice})
	if err := sleep(ctx, 5*time.Second); err != nil {
		return err
	}
	if f.dice[1]%2 == 0 {
		s.untilDone(ctx, s.sink("promote"))
	}
	s.giveBack(ctx, f)
	_, err := s.settle()
	return err
}

// tell waits until relays tell a state of the sink (S2).
func (s *sites) tell(ctx context.Context, state string, relays ...int) error {
	return deadline(ctx, s.scenario.within(handover), func() *violation {
		for _, n := range relays {
			r := s.relays[n]
			out, err := s.ask(r, "sink", sinkName, "-o", "json")
			var all []struct{ State string }
			if err = errors.Join(err, json.Unmarshal([]byte(out), &all)); err != nil || len(all) == 0 || all[0].State != state {
				return &violation{afterPromotion, r.name, -1, fmt.Sprintf("it tells of the sink %s (%v), and is to tell %q", out, err, state)}
			}
		}
		return nil
	})
}

// leave has up to two relays be away before a promotion: the first pauses or is killed, the second is killed. It returns them.
func (s *sites) leave(f siteFault) (away []int) {
	for i := range f.dice[1] >> 8 % siteRelays {
		n := (f.dice[2] + i) % siteRelays
		away = append(away, n)
		var err error
		if i == 0 && f.dice[1]>>12%2 == 0 {
			s.journal.fault("away", "%s pauses", s.relays[n].name)
			err = s.relays[n].signal(syscall.SIGSTOP, false)
		} else {
			s.journal.fault("away", "%s is killed", s.relays[n].name)
			err = s.kill(n, false, false)
		}
		if err != nil {
			s.stop(err)
		}
	}
	return away
}

// comeBack ends leave. The second relay has lost its disk.
func (s *sites) comeBack(away []int) error {
	for i, n := range away {
		s.journal.say("%s comes back", s.relays[n].name)
		if err := errors.Join(s.relays[n].signal(syscall.SIGCONT, false), s.kill(n, true, i == 1)); err != nil {
			return err
		}
	}
	return nil
}

// remember has a promoted site lose that it is, and then relays that were away come back. Those that were there promote it again,
// and all come to know (S2).
func (s *sites) remember(ctx context.Context, loses string, away []int) error {
	var there []int
	for n := range siteRelays {
		if !slices.Contains(away, n) {
			there = append(there, n)
		}
	}
	if err := s.tell(ctx, promoted, there...); err != nil {
		return err
	}
	s.history.mu.Lock()
	before := s.history.promotions
	s.history.mu.Unlock()
	switch loses {
	case "restore":
		if err := s.restore(); err != nil {
			return err
		}
	case "lease":
		s.loseLease(ctx)
	default:
		before-- // there is no need to
	}
	if !s.history.await(ctx, s.scenario.within(handover), func() bool { return s.history.promotions > before }) {
		return &violation{afterPromotion, "the Lease", -1, "the site has lost it, and no relay has written again that it is promoted"}
	}
	if err := s.comeBack(away); err != nil {
		return err
	}
	return s.tell(ctx, promoted, 0, 1, 2)
}
