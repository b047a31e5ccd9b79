package main

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// everything is the claim of a fault that must be alone.
const everything = "everything"

// faultKind is how a fault is done and undone.
type faultKind struct {
	// least and most are how long it lasts.
	least, most time.Duration
	// targets returns how many things it can be done to.
	targets func(scenario) int
	// claims returns what no other fault may be done to meanwhile.
	claims func(sc scenario, target int) []string
	// source, unless it is nil, returns the source that is not to change meanwhile.
	source func(target int) int
	// allowance is how much longer than other faults it may be felt, because the relay is to
	// wait.
	allowance time.Duration
	begin     func(st *stage, f *fault) error
	end       func(st *stage, f *fault) error
}

func linkOf(n int) string     { return fmt.Sprintf("link %d", n) }
func upstreamOf(n int) string { return fmt.Sprintf("upstream %d", n) }
func relayOf(n int) string    { return fmt.Sprintf("relay %d", n) }

func onLink(begin func(st *stage, l *link, f *fault) error) faultKind {
	return faultKind{
		least: time.Second, most: 5 * time.Second, targets: scenario.links,
		claims: func(_ scenario, n int) []string { return []string{linkOf(n)} },
		begin:  func(st *stage, f *fault) error { return begin(st, st.links[f.target], f) },
		end:    func(st *stage, f *fault) error { return st.links[f.target].heal() },
	}
}

// toxicOn is a toxic of toxiproxy on a link, in one of its directions.
func toxicOn(kind string, attributes func(f *fault) map[string]int) faultKind {
	return onLink(func(st *stage, l *link, f *fault) error {
		stream, attr := []string{"upstream", "downstream"}[f.dice[0]%2], attributes(f)
		st.journal.fault(kind, "%s: %s %v, %s, for %v", l.name, kind, attr, stream, f.lasts.Round(time.Millisecond))
		return l.poison(kind, stream, attr)
	})
}

func onUpstream(allowance time.Duration, begin, end func(st *stage, u *upstream, f *fault) error) faultKind {
	return faultKind{
		least: time.Second, most: 4 * time.Second, targets: scenario.servers, allowance: allowance,
		claims: func(_ scenario, n int) []string { return []string{upstreamOf(n), linkOf(n)} },
		begin:  func(st *stage, f *fault) error { return begin(st, st.upstreams[f.target], f) },
		end:    func(st *stage, f *fault) error { return end(st, st.upstreams[f.target], f) },
	}
}

// feeling is a mood in which an upstream restarts, and after which it restarts again.
func feeling(kind, what string, allowance time.Duration, on, off func(m *mood, f *fault)) faultKind {
	return onUpstream(allowance, func(st *stage, u *upstream, f *fault) error {
		st.journal.fault(kind, "upstream %s: %s, for %v", u.name, what, f.lasts.Round(time.Millisecond))
		u.restart(func(m *mood) { on(m, f) })
		return nil
	}, func(_ *stage, u *upstream, f *fault) error {
		u.restart(func(m *mood) { off(m, f) })
		return nil
	})
}

func onRelay(least, most time.Duration, begin, end func(st *stage, r *relay, f *fault) error) faultKind {
	return faultKind{
		least: least, most: most, targets: func(sc scenario) int { return sc.relays },
		claims: func(_ scenario, n int) []string { return []string{relayOf(n)} },
		begin:  func(st *stage, f *fault) error { return begin(st, st.relays[f.target], f) },
		end:    func(st *stage, f *fault) error { return end(st, st.relays[f.target], f) },
	}
}

func onClients(least, most time.Duration, begin func(st *stage, f *fault) error, end func(st *stage, f *fault) error) faultKind {
	return faultKind{
		least: least, most: most, targets: func(sc scenario) int { return sc.relays },
		claims: func(_ scenario, n int) []string { return []string{fmt.Sprintf("clients of relay %d", n)} },
		begin:  begin, end: end,
	}
}

func none(*stage, *fault) error { return nil }
func same(*mood)                {}

// deniedAllowance is how long a relay waits at least after it was refused for who it is, and
// guardHold for how long the guard of the scenario "guard" holds deletions.
const (
	deniedAllowance = 12 * time.Second
	guardHold       = 5 * time.Second
	expireAfter     = 4 * time.Second
)

// faultKinds are all faults there are.
var faultKinds map[string]faultKind

func init() {
	faultKinds = map[string]faultKind{
		"latency": toxicOn("latency", func(f *fault) map[string]int {
			return map[string]int{"latency": f.dice[1] % 800, "jitter": f.dice[2] % 400}
		}),
		"slicer": toxicOn("slicer", func(f *fault) map[string]int {
			return map[string]int{"average_size": 64 + f.dice[1]%2048, "size_variation": 32, "delay": f.dice[2] % 200}
		}),
		"limit_data": toxicOn("limit_data", func(f *fault) map[string]int { return map[string]int{"bytes": 1 + f.dice[1]%200_000} }),
		"reset_peer": toxicOn("reset_peer", func(f *fault) map[string]int { return map[string]int{"timeout": f.dice[1] % 500} }),
		"timeout":    toxicOn("timeout", func(*fault) map[string]int { return map[string]int{"timeout": 0} }),
		"bandwidth":  toxicOn("bandwidth", func(f *fault) map[string]int { return map[string]int{"rate": 2 + f.dice[1]%30} }),
		"cut": onLink(func(st *stage, l *link, f *fault) error {
			st.journal.fault("cut", "%s: cut, for %v", l.name, f.lasts.Round(time.Millisecond))
			l.cut()
			return nil
		}),

		"flap": onUpstream(0, func(st *stage, u *upstream, _ *fault) error {
			st.journal.fault("flap", "upstream %s: ends all streams", u.name)
			u.restart(same)
			return nil
		}, func(_ *stage, u *upstream, _ *fault) error { u.restart(same); return nil }),
		"crash": onUpstream(0, func(st *stage, u *upstream, f *fault) error {
			st.journal.fault("crash", "upstream %s: crashes, for %v", u.name, f.lasts.Round(time.Millisecond))
			u.stop()
			return nil
		}, func(_ *stage, u *upstream, _ *fault) error { return u.start() }),
		"unavailable": feeling("unavailable", "refuses streams", 0,
			func(m *mood, _ *fault) { m.refuses = status.Error(codes.Unavailable, "not ready") }, func(m *mood, _ *fault) { m.refuses = nil }),
		"denied": feeling("denied", "refuses the relay's identity", deniedAllowance,
			func(m *mood, _ *fault) { m.refuses = errDenied }, func(m *mood, _ *fault) { m.refuses = nil }),
		"empty": feeling("empty", "restarts and has nothing", 0,
			func(m *mood, _ *fault) { m.empty = true }, func(m *mood, _ *fault) { m.empty = false }),
		"withhold": feeling("withhold", "restarts and never answers one type", 0,
			func(m *mood, f *fault) { m.withholds = 1 + f.dice[0]%len(kinds) }, func(m *mood, _ *fault) { m.withholds = 0 }),
		"lie": onUpstream(0, func(st *stage, u *upstream, f *fault) error {
			l := lies[f.dice[0]%len(lies)]
			st.journal.fault("lie", "upstream %s: sends %s, for %v", u.name, l, f.lasts.Round(time.Millisecond))
			u.feel(func(m *mood) { m.lies = l })
			return nil
		}, func(_ *stage, u *upstream, _ *fault) error {
			change := u.feel
			if u.isNameless() {
				// The rest of a hold goes at once with all that a new stream has, if each name can be read. On a
				// live stream it waits for a minute.
				change = u.restart
			}
			change(func(m *mood) { m.lies = "" })
			return nil
		}),
		"huge": onUpstream(0, func(st *stage, u *upstream, f *fault) error {
			st.journal.fault("huge", "upstream %s: sends %s, for %v", u.name, lieHuge, f.lasts.Round(time.Millisecond))
			u.feel(func(m *mood) { m.lies = lieHuge })
			return nil
		}, func(_ *stage, u *upstream, _ *fault) error { u.feel(func(m *mood) { m.lies = "" }); return nil }),
		"outage": {
			least: time.Second, most: 4 * time.Second, targets: func(scenario) int { return outages },
			claims: func(sc scenario, n int) (out []string) {
				for ; n < sc.servers(); n += outages {
					out = append(out, upstreamOf(n), linkOf(n))
				}
				return out
			},
			begin: func(st *stage, f *fault) error {
				st.journal.fault("outage", "every %d. upstream from %s on crashes, for %v", outages, st.upstreams[f.target].name, f.lasts.Round(time.Millisecond))
				return st.together(f.target, func(u *upstream) error { u.stop(); return nil })
			},
			end: func(st *stage, f *fault) error { return st.together(f.target, (*upstream).start) },
		},
		"lag": {
			least: 2 * time.Second, most: 6 * time.Second, targets: func(sc scenario) int { return 2 },
			claims: func(_ scenario, n int) []string { return []string{"lag"} },
			begin: func(st *stage, f *fault) error {
				u := st.replicas()[f.target]
				st.journal.fault("lag", "upstream %s: lags behind, for %v", u.name, f.lasts.Round(time.Millisecond))
				u.lag(true)
				return nil
			},
			end: func(st *stage, f *fault) error { st.replicas()[f.target].lag(false); return nil },
		},

		"mass-delete": {
			least: guardHold, most: guardHold, targets: func(scenario) int { return 2 }, allowance: 2 * time.Second,
			claims: func(_ scenario, n int) []string { return []string{upstreamOf(n), linkOf(n)} },
			source: func(target int) int { return target },
			begin:  massDelete, end: none,
		},
		"expire": {
			least: expireAfter + time.Second, most: expireAfter + 3*time.Second, targets: func(scenario) int { return 2 },
			claims: func(_ scenario, n int) []string { return []string{upstreamOf(n), linkOf(n)} },
			begin:  expire, end: func(st *stage, f *fault) error { return st.links[f.target].heal() },
		},
		"broken-file": {
			least: time.Second, most: 4 * time.Second, targets: func(scenario) int { return 1 },
			claims: func(scenario, int) []string { return []string{"files"} },
			begin:  breakFile,
			end:    func(st *stage, f *fault) error { return st.files.mend() },
		},

		"kill": onRelay(50*time.Millisecond, 1500*time.Millisecond, func(st *stage, r *relay, f *fault) error {
			st.journal.fault("kill", "relay %s: SIGKILL, for %v", r.name, f.lasts.Round(time.Millisecond))
			st.kills++
			st.mayForget(f.target, time.Now())
			return r.signal(syscall.SIGKILL, true)
		}, func(_ *stage, r *relay, _ *fault) error { return r.start() }),
		"kill-alone": {
			least: 1500 * time.Millisecond, most: 3 * time.Second, targets: func(scenario) int { return 1 },
			claims: func(scenario, int) []string { return []string{everything} },
			begin: func(st *stage, f *fault) error {
				r := st.relays[f.target]
				st.journal.fault("kill-alone", "relay %s: SIGKILL, and it can reach no upstream for %v", r.name, f.lasts.Round(time.Millisecond))
				st.kills++
				st.mayForget(f.target, time.Now())
				if err := r.signal(syscall.SIGKILL, true); err != nil {
					return err
				}
				st.isolate()
				return r.start()
			},
			end: func(st *stage, _ *fault) error { return st.reconnect() },
		},
		"terminate": onRelay(50*time.Millisecond, time.Second, func(st *stage, r *relay, f *fault) error {
			st.journal.fault("terminate", "relay %s: SIGTERM, for %v", r.name, f.lasts.Round(time.Millisecond))
			return r.signal(syscall.SIGTERM, true)
		}, func(_ *stage, r *relay, _ *fault) error { return r.start() }),
		"disk-full": onRelay(time.Second, 4*time.Second, func(st *stage, r *relay, f *fault) error {
			st.journal.fault("disk-full", "relay %s: the disk is full, for %v", r.name, f.lasts.Round(time.Millisecond))
			st.diskIsFull(f.target, time.Now())
			return r.limitFiles(0)
		}, func(st *stage, r *relay, f *fault) error {
			st.diskEnded[f.target] = time.Now()
			return r.limitFiles(-1)
		}),
		"corrupt": {
			least: 2 * time.Second, most: 3 * time.Second, targets: func(sc scenario) int { return sc.relays },
			claims: func(scenario, int) []string { return []string{everything} },
			begin:  corrupt, end: none,
		},
		"reorder": onRelay(time.Second, 5*time.Second, func(st *stage, r *relay, f *fault) error {
			order := permutation(len(r.upstreams), f.dice[0])
			st.journal.fault("reorder", "relay %s: SIGHUP, upstreams in the order %v, for %v", r.name, order, f.lasts.Round(time.Millisecond))
			if f.target == 0 {
				st.world.reorder(order)
			}
			return st.reload(r, order)
		}, func(st *stage, r *relay, f *fault) error {
			if f.target == 0 {
				st.world.reorder(permutation(len(r.upstreams), 0))
			}
			return st.reload(r, nil)
		}),
		"leave": onRelay(time.Second, 3*time.Second, func(st *stage, r *relay, f *fault) error {
			leave, left := f.leavers(len(r.upstreams))
			st.journal.fault("leave", "relay %s: SIGHUP without the upstreams %v, for %v", r.name, leave, f.lasts.Round(time.Millisecond))
			st.world.leave(leave)
			return st.reload(r, left)
		}, func(st *stage, r *relay, f *fault) error {
			leave, _ := f.leavers(len(r.upstreams))
			var names []string
			for _, n := range leave {
				names = append(names, r.upstreams[n].name)
			}
			if err := r.lost(st.ctx, names); err != nil {
				return err
			}
			st.world.stay(leave)
			return st.reload(r, nil)
		}),
		"bad-config": onRelay(time.Second, 4*time.Second, func(st *stage, r *relay, f *fault) error {
			st.journal.fault("bad-config", "relay %s: SIGHUP with a broken file, for %v", r.name, f.lasts.Round(time.Millisecond))
			if err := r.writeConfig("upstreams: [{name: broken"); err != nil {
				return err
			}
			return r.signal(syscall.SIGHUP, false)
		}, func(st *stage, r *relay, _ *fault) error { return st.reload(r, nil) }),

		"storm": onClients(time.Second, 2*time.Second, func(st *stage, f *fault) error {
			st.journal.fault("storm", "relay %s: a storm of %d clients", st.relays[f.target].name, st.scenario.storm)
			st.storm(f.target, st.scenario.storm)
			return nil
		}, none),
		"stall": onClients(2*time.Second, 6*time.Second, func(st *stage, f *fault) error {
			st.journal.fault("stall", "relay %s: %d clients stop reading, for %v", st.relays[f.target].name, stalled, f.lasts.Round(time.Millisecond))
			st.stall(f.target, f.lasts)
			return nil
		}, none),
		"nack": onClients(time.Second, 5*time.Second, func(st *stage, f *fault) error {
			c := st.clients[f.dice[0]%len(st.clients)]
			st.journal.fault("nack", "client %s: rejects everything, for %v", c.name, f.lasts.Round(time.Millisecond))
			c.nacks.Store(true)
			return nil
		}, func(st *stage, f *fault) error { st.clients[f.dice[0]%len(st.clients)].nacks.Store(false); return nil }),
	}
	maps.Copy(faultKinds, clusterFaults())
	maps.Copy(faultKinds, silenceFaults())
}

// outages is how many groups of upstreams there are that crash together.
const outages = 3

// together does something to all upstreams of a group.
func (st *stage) together(group int, do func(u *upstream) error) error {
	for n := group; n < len(st.upstreams); n += outages {
		if err := do(st.upstreams[n]); err != nil {
			return err
		}
	}
	return nil
}

// leavers returns which of n upstreams leave the config, up to a quarter, and which are left.
func (f *fault) leavers(n int) (leave, left []int) {
	order := rand.New(rand.NewPCG(uint64(f.dice[0]), uint64(f.dice[1]))).Perm(n)
	cut := 1 + f.dice[2]%max(1, n/4)
	leave, left = order[:cut], order[cut:]
	slices.Sort(leave)
	slices.Sort(left)
	return leave, left
}

// massDelete restarts an upstream, which then has a third of what it had.
func massDelete(st *stage, f *fault) error {
	u := st.upstreams[f.target]
	st.journal.fault("mass-delete", "upstream %s: restarts without %d of its configs", u.name, len(f.keys))
	u.stop()
	for _, key := range f.keys {
		st.world.remove(u.source.number, key, guardHold)
	}
	return u.start()
}

// expire takes an upstream out of contact for longer than its resources are kept. Meanwhile it loses them.
func expire(st *stage, f *fault) error {
	u, l := st.upstreams[f.target], st.links[f.target]
	st.journal.fault("expire", "%s: cut, for %v, after which its resources have expired", l.name, f.lasts.Round(time.Millisecond))
	l.cut()
	w := st.world
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, it := range u.source.items {
		if !it.newest.gone {
			u.source.recordLater(key, it.newest.seq, false, expireAfter-expireGrain)
		}
	}
	return nil
}

// expireGrain is how exact the time is at which the relay notices a disconnect.
const expireGrain = 100 * time.Millisecond

// breakFile spoils a file of the source. The relay must go on with its last good content.
func breakFile(st *stage, f *fault) error {
	keys := st.files.source.present()
	if len(keys) == 0 {
		return nil
	}
	key := keys[f.dice[0]%len(keys)]
	st.journal.fault("broken-file", "%s: the file of %s is broken, for %v", st.files.source.name, describe(key), f.lasts.Round(time.Millisecond))
	return st.files.breakOne(key)
}

// corrupt spoils the state file of a relay while that is down.
func corrupt(st *stage, f *fault) error {
	r := st.relays[f.target]
	st.mayForget(f.target, time.Now())
	if err := r.signal(syscall.SIGKILL, true); err != nil {
		return err
	}
	st.kills++
	files, err := filepath.Glob(filepath.Join(r.stateDir(), "*.state")) // of an upstream each, and their index
	if err != nil || len(files) == 0 {
		return fmt.Errorf("relay %s has no state: %w", r.name, err)
	}
	path := files[f.dice[3]%len(files)]
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	at := int64(f.dice[0]) * info.Size() >> 20
	what := ""
	if f.dice[1]%2 == 0 {
		what = fmt.Sprintf("cut off at byte %d of %d", at, info.Size())
		err = file.Truncate(at)
	} else {
		junk := make([]byte, 4096)
		for i := range junk {
			junk[i] = byte(i * f.dice[2])
		}
		// All of it from here on, so that it is found wherever the data are.
		what = fmt.Sprintf("overwritten from byte %d of %d", at&^4095, info.Size())
		for off := at &^ 4095; off < info.Size() && err == nil; off += int64(len(junk)) {
			_, err = file.WriteAt(junk, off)
		}
	}
	if err != nil {
		return err
	}
	st.corrupted[f.target]++
	st.journal.fault("corrupt", "relay %s: SIGKILL, and %s of its state is %s", r.name, filepath.Base(path), what)
	return r.start()
}

// permutation returns an order of n things; the first one is that of their numbers.
func permutation(n, which int) []int {
	out := make([]int, 0, n)
	left := make([]int, n)
	for i := range left {
		left[i] = i
	}
	for len(left) > 0 {
		i := which % len(left)
		which /= len(left)
		out = append(out, left[i])
		left = append(left[:i], left[i+1:]...)
	}
	return out
}
