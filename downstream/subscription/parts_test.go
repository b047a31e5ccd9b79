package subscription

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"meshrelay/downstream/snapshot"
)

const (
	drV1 = "networking.istio.io/v1/DestinationRule"
	// control is an encoded ControlPlane.
	control = "\x0a\x01r"
	// headBytes is more than a response has in addition to what is cut.
	headBytes = 200
)

// fataler is *testing.T or *rapid.T.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// cutClient is a delta client, and the subscriptions of its stream.
type cutClient struct {
	t     fataler
	set   *Set
	most  int
	holds map[string]map[string]string // by type: name to version
	of    map[string]*snapshot.Collection
	round *Round
}

func newCutClient(t fataler, most int, of map[string]*snapshot.Collection) *cutClient {
	c := &cutClient{t: t, most: most, of: of, holds: map[string]map[string]string{}}
	for typeURL := range of {
		c.holds[typeURL] = map[string]string{}
	}
	c.connect()
	return c
}

func (c *cutClient) request(req *Request) Outcome {
	c.t.Helper()
	out, err := c.set.Request(req, Limits{Types: 10, Names: 10, NameBytes: 1000, PartBytes: c.most}, time.Now())
	if err != nil {
		c.t.Fatalf("%v", err)
	}
	return out
}

// connect opens a stream, and resumes with what the client has.
func (c *cutClient) connect() {
	c.t.Helper()
	c.set, c.round = New(true, []byte(control), lookup), nil
	for typeURL, held := range c.holds {
		c.request(&Request{TypeURL: typeURL, Versions: maps.Clone(held)})
	}
}

// next returns the next response, nil when the round is over, and has the client apply it.
func (c *cutClient) next() *discoveryv3.DeltaDiscoveryResponse {
	c.t.Helper()
	if c.round == nil {
		var err error
		if c.round, err = c.set.Plan(func(t Type) *snapshot.Snapshot {
			for typeURL, of := range c.of {
				if known, _ := lookup(typeURL); known == t {
					return of.Current()
				}
			}
			return snapshot.Empty
		}, func(int) {}); err != nil {
			c.t.Fatalf("%v", err)
		}
		if c.round == nil {
			return nil
		}
	}
	resp, ok := c.set.Next(c.round, time.Now())
	if !ok {
		c.round = nil
		return nil
	}
	m := &discoveryv3.DeltaDiscoveryResponse{}
	if err := proto.Unmarshal(resp.Buffers.Materialize(), m); err != nil {
		c.t.Fatalf("%v", err)
	}
	if m.Nonce != resp.Nonce || m.TypeUrl != resp.TypeURL || proto.Size(m) != resp.Size {
		c.t.Fatalf("%d bytes of %s, nonce %q; announced are %d of %s, %q", proto.Size(m), m.TypeUrl, m.Nonce, resp.Size, resp.TypeURL, resp.Nonce)
	}
	if c.most > 0 && resp.Size > c.most+headBytes && len(m.Resources)+len(m.RemovedResources) > 1 {
		c.t.Fatalf("%d bytes: want %d at most", resp.Size, c.most)
	}
	for _, r := range m.Resources {
		c.holds[m.TypeUrl][r.Name] = r.Version
	}
	for _, name := range m.RemovedResources {
		delete(c.holds[m.TypeUrl], name)
	}
	return m
}

// all returns the responses of a round.
func (c *cutClient) all() (out []*discoveryv3.DeltaDiscoveryResponse) {
	c.t.Helper()
	for m := c.next(); m != nil; m = c.next() {
		out = append(out, m)
	}
	return out
}

// change puts resources of size bytes, about, and removes others.
func change(c *snapshot.Collection, size int, content string, put, remove []int) {
	var updates []snapshot.Update
	for _, i := range put {
		res := se("shop", fmt.Sprintf("s-%03d", i), content+strings.Repeat("x", size))
		updates = append(updates, snapshot.Update{Name: res.FullName(), Item: res})
	}
	for _, i := range remove {
		updates = append(updates, snapshot.Update{Name: fmt.Sprintf("shop/s-%03d", i)})
	}
	c.Apply(updates, time.Now())
}

func numbers(from, to int) (out []int) {
	for i := from; i < to; i++ {
		out = append(out, i)
	}
	return out
}

func TestAnswersAreCutAndAllPartsButTheLastAreMarked_S18(t *testing.T) {
	for name, tc := range map[string]struct {
		most  int
		sizes []int // of resources
		held  []string
		want  []int // resources, or minus removed names, in each response
	}{
		"nothing":                     {1000, nil, nil, []int{0}},
		"all in one":                  {100_000, []int{1000, 1000, 1000}, nil, []int{3}},
		"in parts":                    {4000, []int{1000, 1000, 1000, 1000, 1000, 1000}, nil, []int{3, 3}},
		"a resource is never cut":     {5000, []int{100, 9000, 100, 100}, nil, []int{1, 1, 2}},
		"one resource":                {50, []int{9000}, nil, []int{1}},
		"with removals":               {4000, []int{1000, 1000, 1000, 1000}, []string{"shop/gone"}, []int{3, 1, -1}},
		"removals in parts":           {100, nil, []string{"a/" + strings.Repeat("a", 60), "b/" + strings.Repeat("b", 60), "c/c"}, []int{-1, -2}},
		"a removed name is never cut": {10, nil, []string{"a/" + strings.Repeat("a", 60), "b/b"}, []int{-1, -1}},
	} {
		t.Run(name, func(t *testing.T) {
			of := snapshot.New()
			for i, size := range tc.sizes {
				change(of, size, "", []int{i}, nil)
			}
			c := &cutClient{t: t, most: tc.most, of: map[string]*snapshot.Collection{seV1: of}, holds: map[string]map[string]string{seV1: {}}}
			for _, name := range tc.held {
				c.holds[seV1][name] = "old"
			}
			c.connect()
			var got []int
			nonces := map[string]bool{}
			all := c.all()
			for i, m := range all {
				got = append(got, len(m.Resources)-len(m.RemovedResources))
				want := ""
				if i < len(all)-1 {
					want = snapshot.PartMark
				}
				if m.SystemVersionInfo != want {
					t.Errorf("response %d of %d has the mark %q", i, len(all), m.SystemVersionInfo)
				}
				if nonces[m.Nonce] {
					t.Errorf("the nonce %q comes twice", m.Nonce)
				}
				nonces[m.Nonce] = true
			}
			if !slices.Equal(got, tc.want) || !maps.Equal(c.holds[seV1], content(of.Current())) {
				t.Errorf("responses with %v, want %v; the client has %d", got, tc.want, len(c.holds[seV1]))
			}
		})
	}
}

// TestPartsKeepTheOrderOfARound_S20: additions of all types, in all their parts, come before any
// removal, and an answer ends with the last part of its removals.
func TestPartsKeepTheOrderOfARound_S20(t *testing.T) {
	of := map[string]*snapshot.Collection{seV1: snapshot.New(), drV1: snapshot.New()}
	for _, one := range of {
		change(one, 10, "", numbers(0, 4), nil)
	}
	c := newCutClient(t, 25, of) // which has room for two names
	c.all()
	for _, one := range of {
		change(one, 600, "", numbers(4, 8), numbers(0, 4))
	}
	var got []string
	for _, m := range c.all() {
		what := fmt.Sprintf("%s +%d -%d", m.TypeUrl[strings.LastIndex(m.TypeUrl, "/")+1:], len(m.Resources), len(m.RemovedResources))
		if m.SystemVersionInfo == "" {
			what += " end"
		}
		got = append(got, what)
	}
	want := []string{
		"ServiceEntry +1 -0", "ServiceEntry +1 -0", "ServiceEntry +1 -0", "ServiceEntry +1 -0",
		"DestinationRule +1 -0", "DestinationRule +1 -0", "DestinationRule +1 -0", "DestinationRule +1 -0",
		"DestinationRule +0 -2", "DestinationRule +0 -2 end", "ServiceEntry +0 -2", "ServiceEntry +0 -2 end",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the round is\n%s", strings.Join(got, "\n"))
	}
}

// TestAPartIsNotTheAnswer_S7: what an ACK or a NACK of a part counts for.
func TestAPartIsNotTheAnswer_S7(t *testing.T) {
	of := snapshot.New()
	change(of, 1000, "", numbers(0, 6), nil)
	var nonces []string
	receipts := func(c *cutClient) string {
		var out []string
		for _, name := range []string{"shop/s-000", "shop/s-005"} {
			r, _ := c.set.Watch(seV1).Receipt(of.Current(), name)
			out = append(out, string(r))
		}
		return fmt.Sprint(strings.Join(out, ", "), ", synced ", c.set.Watch(seV1).Status().Synced)
	}
	for name, tc := range map[string]struct {
		events string // s: the next part is sent; 0-2: ACK of a part; n0-n2: NACK
		want   string
	}{
		"nothing":                     {"", "not sent, not sent, synced false"},
		"a part":                      {"s", "not sent, not sent, synced false"},
		"a part is acknowledged":      {"s 0", "not sent, not sent, synced false"},
		"two parts are":               {"s 0 s 1", "not sent, not sent, synced false"},
		"all are sent":                {"s 0 s 1 s", "sent, sent, synced false"},
		"and not the last":            {"s s s 0 1", "sent, sent, synced false"},
		"and the last, later":         {"s s s 0 1 2", "acknowledged, acknowledged, synced true"},
		"all are, in step":            {"s 0 s 1 s 2", "acknowledged, acknowledged, synced true"},
		"the first is rejected":       {"s n0", "rejected, rejected, synced false"},
		"and the others are not":      {"s n0 s 1 s 2", "rejected, rejected, synced true"},
		"the first is rejected later": {"s s s n0 1 2", "rejected, rejected, synced true"},
		"the last is rejected":        {"s 0 s 1 s n2", "rejected, rejected, synced false"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCutClient(t, 3000, map[string]*snapshot.Collection{seV1: of})
			nonces = nil
			for _, event := range strings.Fields(tc.events) {
				number, rejected := strings.CutPrefix(event, "n")
				switch {
				case event == "s":
					nonces = append(nonces, c.next().Nonce)
				case c.request(&Request{TypeURL: seV1, Nonce: nonces[number[0]-'0'], Rejected: rejected}) == Stale:
					t.Errorf("%s is stale", event)
				}
			}
			if got := receipts(c); got != tc.want {
				t.Errorf("the first and the last resource are %s, want %s", got, tc.want)
			}
		})
	}
	t.Run("a later answer", func(t *testing.T) {
		c := newCutClient(t, 3000, map[string]*snapshot.Collection{seV1: of})
		for _, m := range c.all() {
			c.request(&Request{TypeURL: seV1, Nonce: m.Nonce})
		}
		last := c.set.Watch(seV1).Status().AckedNonce
		if first := "first/" + seV1; last != first+"#3" || c.request(&Request{TypeURL: seV1, Nonce: first}) != Stale {
			t.Errorf("the last nonce is %q, or an older one counts", last)
		}
		change(of, 1000, "new", numbers(1, 6), nil)
		c.request(&Request{TypeURL: seV1, Nonce: c.next().Nonce})
		if got := receipts(c); got != "acknowledged, not sent, synced false" {
			t.Errorf("what is as it was, and what is new, are %s", got)
		}
		for m := c.next(); m != nil; m = c.next() {
			c.request(&Request{TypeURL: seV1, Nonce: m.Nonce})
		}
		if got := receipts(c); got != "acknowledged, acknowledged, synced true" {
			t.Errorf("in the end they are %s", got)
		}
	})
}

// TestAClientOfPartsHasWhatThereIs_S18: whatever changes while the parts are sent, and wherever the
// stream ends. What counts as sent, the client has.
func TestAClientOfPartsHasWhatThereIs_S18(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		of := snapshot.New()
		change(of, 500, "", numbers(0, rapid.IntRange(0, 30).Draw(t, "first")), nil)
		c := newCutClient(t, rapid.SampledFrom([]int{1, 2000, 10_000}).Draw(t, "part"), map[string]*snapshot.Collection{seV1: of})
		planned := map[string]string{}
		var nonces []string
		t.Repeat(map[string]func(*rapid.T){
			"change": func(t *rapid.T) {
				name := rapid.IntRange(0, 40)
				change(of, rapid.SampledFrom([]int{1, 500, 4000}).Draw(t, "size"), rapid.SampledFrom([]string{"a", "b"}).Draw(t, "content"),
					rapid.SliceOfNDistinct(rapid.IntRange(0, 20), 0, 12, rapid.ID[int]).Draw(t, "put"),
					rapid.SliceOfNDistinct(rapid.IntRange(21, 40), 0, 12, rapid.ID[int]).Draw(t, "remove"))
				change(of, 100, "c", []int{name.Draw(t, "another")}, nil)
			},
			"send": func(t *rapid.T) {
				if c.round == nil {
					planned = content(of.Current())
				}
				m := c.next()
				if m != nil {
					nonces = append(nonces, m.Nonce)
				}
				if (m == nil || m.SystemVersionInfo == "") && !maps.Equal(c.holds[seV1], planned) {
					t.Fatalf("at the end of an answer the client has %v, want %v", c.holds[seV1], planned)
				}
			},
			"answer": func(t *rapid.T) {
				if len(nonces) > 0 {
					c.request(&Request{TypeURL: seV1, Nonce: nonces[0], Rejected: rapid.IntRange(0, 5).Draw(t, "reject") == 0})
					nonces = nonces[1:]
				}
			},
			"reconnect": func(*rapid.T) {
				c.connect()
				nonces = nil
			},
			"": func(t *rapid.T) {
				s, w := of.Current(), c.set.Watch(seV1)
				for name, version := range content(s) {
					if r, _ := w.Receipt(s, name); (r == Sent || r == Acknowledged) && c.holds[seV1][name] != version {
						t.Fatalf("%s is %s, and the client has version %q", name, r, c.holds[seV1][name])
					}
				}
				if w.Status().Synced && c.round == nil && w.cursor == s.Rev && !maps.Equal(c.holds[seV1], content(s)) {
					t.Fatalf("a client counts as synced that has %v", c.holds[seV1])
				}
			},
		})
	})
}

// TestClientsThatComeTogetherShareAllParts: each costs its stream, and no list of what there is.
func TestClientsThatComeTogetherShareAllParts(t *testing.T) {
	const clients, most = 100, 64 << 10
	of := filled(20_000)
	newest := func(Type) *snapshot.Snapshot { return of.Current() }
	var shared []*snapshot.Message
	come := func() {
		set := New(true, []byte(control), lookup)
		if _, err := set.Request(&Request{TypeURL: seV1}, Limits{1, 1, 1, most}, time.Now()); err != nil {
			t.Fatal(err)
		}
		round, err := set.Plan(newest, nil)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for resp, ok := set.Next(round, time.Now()); ok; resp, ok = set.Next(round, time.Now()) {
			if n == len(shared) {
				shared = append(shared, resp.Message)
			}
			if resp.Message != shared[n] || resp.Size > most+headBytes {
				t.Fatalf("part %d has %d bytes, or is not that of the other clients", n, resp.Size)
			}
			n++
		}
		if n != len(shared) || n < 20 {
			t.Fatalf("%d parts, others have %d", n, len(shared))
		}
	}
	come()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range clients {
		come()
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / clients; each > 32<<10 {
		t.Errorf("%d bytes are allocated for each client; a list of what there is has %d", each, 16*20_000)
	}
}
