package push

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/internal/testing/await"
)

// simulation is a server of clients that are all sent every change, and what it costs.
type simulation struct {
	clients   int
	plan      time.Duration // of one CPU, for each push
	client    time.Duration // of one CPU, for each client and push
	slow      int           // how many of the clients take drain until they can be handed more
	drain     time.Duration
	gap       time.Duration // from one change to the next
	upstreams int
	share     float64
	lasting   time.Duration
}

// simulated is what came of a simulation.
type simulated struct {
	p50, p99, max time.Duration // from a change to a client that is not slow
	cores         float64       // how much of one CPU the work took
	pushes        int
	handed        []int // how often each client was handed something
}

const simulatedCPUs = 2

func (s simulation) run(t *testing.T) (out simulated) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		work := NewWork()
		p := NewPusher(Options{After: 100 * time.Millisecond, Max: time.Second, MaxShare: s.share, CPUs: simulatedCPUs}, work)
		cpus := make(chan struct{}, simulatedCPUs)
		spend := func(d time.Duration) {
			cpus <- struct{}{}
			await.Pass(d)
			<-cpus
			work.Busy(d)
		}
		var mu sync.Mutex // guards all below
		var made []time.Time
		var served []int // changes, as they were pushed
		var waits []time.Duration
		told, sending := make([]bool, s.clients), make([]bool, s.clients)
		wakes := make([]chan struct{}, s.clients)
		out.handed = make([]int, s.clients)

		serve := func(i int) {
			have := 0
			for range wakes[i] {
				spend(s.client)
				mu.Lock()
				if told[i] {
					told[i] = false
					work.Reached()
				}
				now := time.Now()
				for _, n := range served[have:] {
					if i >= s.slow {
						waits = append(waits, now.Sub(made[n]))
					}
				}
				have = len(served)
				out.handed[i]++
				mu.Unlock()
				if i < s.slow {
					mu.Lock()
					sending[i] = true
					mu.Unlock()
					await.Pass(s.drain)
					mu.Lock()
					sending[i] = false
					mu.Unlock()
				}
			}
			if have != len(made) {
				t.Errorf("client %d has %d of %d changes", i, have, len(made))
			}
		}
		push := func(r *Request) {
			spend(s.plan)
			mu.Lock()
			defer mu.Unlock()
			out.pushes++
			for key := range r.ConfigsUpdated {
				n, err := strconv.Atoi(key.Name)
				if err != nil {
					t.Error(err)
				}
				served = append(served, n)
			}
			for i := range s.clients {
				if !told[i] && !sending[i] {
					told[i] = true
					work.Told()
				}
				select {
				case wakes[i] <- struct{}{}:
				default:
				}
			}
		}
		var clients, runner sync.WaitGroup
		for i := range s.clients {
			wakes[i] = make(chan struct{}, 1)
			clients.Go(func() { serve(i) })
		}
		ctx, cancel := context.WithCancel(t.Context())
		runner.Go(func() {
			if err := p.Run(ctx, push); err != nil {
				t.Error(err)
			}
		})
		began := time.Now()
		for n := range int(s.lasting / s.gap) {
			await.Pass(time.Until(began.Add(time.Duration(n) * s.gap)))
			mu.Lock()
			made = append(made, time.Now())
			mu.Unlock()
			p.Changed(fmt.Sprint(n%s.upstreams), key(strconv.Itoa(n)), ConfigUpdate)
		}
		out.cores = work.Total().Seconds() / time.Since(began).Seconds()
		await.Pass(time.Minute)
		cancel()
		runner.Wait()
		for _, wake := range wakes {
			close(wake)
		}
		clients.Wait()
		slices.Sort(waits)
		at := func(q float64) time.Duration { return waits[min(int(q*float64(len(waits))), len(waits)-1)] }
		out.p50, out.p99, out.max = at(0.5), at(0.99), at(1)
	})
	return out
}

// TestPushingIsPacedByItsCost: over rates, costs and slow clients. Those are handed no more than
// they drain, and delay nobody.
func TestPushingIsPacedByItsCost(t *testing.T) {
	const us, ms = time.Microsecond, time.Millisecond
	few := simulation{clients: 20, plan: 200 * us, client: 60 * us, upstreams: 4, share: 0.5, lasting: 10 * time.Second}
	for _, tc := range []struct {
		name          string
		change        func(*simulation)
		p50, p99, max time.Duration
		cores         float64
	}{
		{"one change every 150 ms", func(s *simulation) { s.gap = 150 * ms }, 2 * ms, 2 * ms, 2 * ms, 0.02},
		{"100 ms", func(s *simulation) { s.gap = 100 * ms }, 2 * ms, 2 * ms, 2 * ms, 0.02},
		{"50 ms", func(s *simulation) { s.gap = 50 * ms }, 2 * ms, 2 * ms, 2 * ms, 0.03},
		{"20 ms", func(s *simulation) { s.gap = 20 * ms }, 2 * ms, 2 * ms, 2 * ms, 0.08},
		{"5 ms", func(s *simulation) { s.gap = 5 * ms }, 10 * ms, 15 * ms, 15 * ms, 0.2},
		{"3 ms", func(s *simulation) { s.gap = 3 * ms }, 10 * ms, 15 * ms, 15 * ms, 0.2},
		{"3 ms, of one upstream", func(s *simulation) { s.gap, s.upstreams = 3*ms, 1 }, 10 * ms, 15 * ms, 15 * ms, 0.2},
		{"1 ms, 100 clients", func(s *simulation) { s.gap, s.clients = ms, 100 }, 25 * ms, 50 * ms, 50 * ms, 1},
		{"1 ms, and a push takes a second of a CPU", func(s *simulation) { s.gap, s.clients, s.client = ms, 500, 2*ms }, time.Second, 1600 * ms, 1600 * ms, 1.001},
		{"1 ms, and a push takes half a second of a CPU", func(s *simulation) { s.gap, s.clients, s.client = ms, 500, ms }, 800 * ms, 1300 * ms, 1300 * ms, 0.51},
		{"50 ms, 20 clients that cost much", func(s *simulation) { s.gap, s.client = 50*ms, 1500*us }, 50 * ms, 100 * ms, 100 * ms, 1},
		{"a tenth of the CPUs", func(s *simulation) { s.gap, s.client, s.share = 50*ms, 1500*us, 0.1 }, 100 * ms, 200 * ms, 200 * ms, 0.201},
		{"three slow clients", func(s *simulation) { s.gap, s.slow, s.drain = 20*ms, 3, 400*ms }, 2 * ms, 3 * ms, 3 * ms, 0.1},
		{"most clients are slow, and lag behind", func(s *simulation) { s.gap, s.slow, s.drain = 20*ms, 15, 400*ms }, 2 * ms, 3 * ms, 3 * ms, 0.1},
		{"two clients never read", func(s *simulation) { s.gap, s.slow, s.drain = 20*ms, 2, 20*time.Second }, 2 * ms, 3 * ms, 3 * ms, 0.1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := few
			tc.change(&s)
			got := s.run(t)
			if got.p50 > tc.p50 || got.p99 > tc.p99 || got.max > tc.max || got.cores > tc.cores {
				t.Errorf("p50 %v, p99 %v, max %v, %.3f cores, %d pushes; want at most %v, %v, %v, %v",
					got.p50, got.p99, got.max, got.cores, got.pushes, tc.p50, tc.p99, tc.max, tc.cores)
			}
			most := int(s.lasting / s.gap)
			if s.drain > 0 {
				most = int(s.lasting/s.drain) + 2
			}
			for i, n := range got.handed {
				if i < s.slow && n > most {
					t.Errorf("slow client %d was handed %d responses, and drains %d", i, n, most)
				}
			}
		})
	}
}
