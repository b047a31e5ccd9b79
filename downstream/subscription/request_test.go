package subscription

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meshrelay/downstream/refusal"
	"meshrelay/downstream/snapshot"
)

// client runs requests against a Set, and answers them.
type client struct {
	t     *testing.T
	delta bool
	set   *Set
	at    map[Type]*snapshot.Collection
	asked *Request // the last one
}

func newClient(t *testing.T, delta bool) *client {
	c := &client{t: t, delta: delta, set: New(delta, nil, lookup), at: map[Type]*snapshot.Collection{}}
	se, _ := lookup(seV1)
	c.at[se] = filled(3)
	return c
}

// ask sends one request: names with a minus are unsubscribed. nonce "last" is that of the
// newest response.
func (c *client) ask(typeURL, names, nonce, nack string) (Outcome, error) {
	c.t.Helper()
	limits := Limits{Types: 2, Names: 3, NameBytes: 100}
	if w := c.set.Watch(typeURL); nonce == "last" && w != nil {
		nonce = w.Status().SentNonce
	}
	req := &Request{TypeURL: typeURL, Nonce: nonce, Rejected: nack != "", Error: nack}
	for _, name := range strings.Fields(names) {
		if gone, ok := strings.CutPrefix(name, "-"); ok && c.delta {
			req.Unsubscribe = append(req.Unsubscribe, gone)
		} else {
			req.Subscribe = append(req.Subscribe, name)
		}
	}
	c.asked = req
	return c.set.Request(req, limits, time.Time{})
}

// answer returns the types of the responses that the client is sent.
func (c *client) answer() string {
	c.t.Helper()
	round, err := c.set.Plan(func(t Type) *snapshot.Snapshot {
		if at := c.at[t]; at != nil {
			return at.Current()
		}
		return snapshot.Empty
	}, func(int) {})
	if err != nil {
		c.t.Fatal(err)
	}
	var out []string
	for round != nil {
		resp, ok := c.set.Next(round, time.Time{})
		if !ok {
			break
		}
		out = append(out, resp.TypeURL[strings.LastIndex(resp.TypeURL, "/")+1:])
	}
	return strings.Join(out, " ")
}

// TestWhatARequestIsFollowsFromItsNonceAndItsNames_S7: a subscription, an ACK, a NACK, or
// about a response that is not the newest; and whether it is answered.
func TestWhatARequestIsFollowsFromItsNonceAndItsNames_S7(t *testing.T) {
	const drV1 = "networking.istio.io/v1/DestinationRule"
	type step struct {
		typeURL, names, nonce, nack string
		want                        Outcome
		answer                      string
	}
	for name, tc := range map[string]struct {
		delta bool
		steps []step
	}{
		"SotW": {false, []step{
			{seV1, "", "", "", Subscribed, "ServiceEntry"},
			{seV1, "", "last", "", ACK, ""},
			{seV1, "", "last", "no good", NACK, ""},
			{seV1, "", "0", "no good", Stale, ""},
			{seV1, "", "0", "", Stale, ""},
			{seV1, "", "", "", Subscribed, "ServiceEntry"},
			{seV1, "shop/s-000000", "last", "", Subscribed, "ServiceEntry"},
			{seV1, "shop/s-000000", "last", "", ACK, ""},
			{seV1, "", "last", "", Subscribed, ""},
			{drV1, "", "2020-01-01", "", Subscribed, "DestinationRule"},
		}},
		"SotW, a first request that is a NACK": {false, []step{{seV1, "", "7", "no good", NACK, "ServiceEntry"}}},
		"delta": {true, []step{
			{seV1, "", "", "", Subscribed, "ServiceEntry"},
			{seV1, "", "last", "", ACK, ""},
			{seV1, "", "last", "", Stale, ""},
			{seV1, "", "last", "no good", NACK, ""},
			{seV1, "*", "", "", Subscribed, "ServiceEntry"},
			{seV1, "shop/s-000000", "last", "", ACK, "ServiceEntry"},
			{seV1, "-*", "99", "", Subscribed, ""},
			{drV1, "x/y", "", "", Subscribed, "DestinationRule"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClient(t, tc.delta)
			for i, st := range tc.steps {
				got, err := c.ask(st.typeURL, st.names, st.nonce, st.nack)
				if err != nil || got != st.want {
					t.Fatalf("step %d is %v, %v; want %v", i, got, err, st.want)
				}
				if answer := c.answer(); answer != st.answer {
					t.Fatalf("step %d is answered with %q, want %q", i, answer, st.answer)
				}
			}
		})
	}
}

// TestARequestThatAsksForNothingIsAnsweredByNothing: in whatever order requests come, and whatever changes
// between them. An acknowledgement is among them.
func TestARequestThatAsksForNothingIsAnsweredByNothing(t *testing.T) {
	silent := map[Outcome]int{}
	for seed := range uint64(400) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		pick := func(of ...string) string { return of[rnd.IntN(len(of))] }
		c := newClient(t, seed%2 == 0)
		se, _ := lookup(seV1)
		for range 30 {
			if rnd.IntN(4) == 0 {
				c.at[se].Apply([]snapshot.Update{{Name: pick("shop/s-000000", "shop/s-000001")}}, time.Time{})
				c.answer()
			}
			got, err := c.ask(seV1, pick("", "", "", "*", "-*", "shop/s-000000", "shop/s-000001", "-shop/s-000000"), pick("", "last", "last", "last", "1", "99"), pick("", "", "", "no good"))
			if err != nil {
				break
			}
			asks := got.Asks(c.asked)
			if answer := c.answer(); answer != "" && !asks {
				t.Fatalf("seed %d: %v %+v is answered with %q", seed, got, c.asked, answer)
			}
			if !asks {
				silent[got]++
			}
		}
	}
	if silent[ACK] < 100 || silent[Stale] < 100 || len(silent) != 2 {
		t.Errorf("requests that ask for nothing, by outcome: %v", silent)
	}
}

// TestWhatIsOverALimitIsRefused: types and names by number, names by their bytes.
func TestWhatIsOverALimitIsRefused(t *testing.T) {
	for _, delta := range []bool{false, true} {
		for _, tc := range []struct {
			typeURL, names string
			code           codes.Code
			why            refusal.Reason
			text           string
		}{
			{"a/v1/A a/v1/B a/v1/C", "", codes.ResourceExhausted, refusal.Types, "more than 2 types"},
			{strings.Repeat("x", 513), "", codes.InvalidArgument, refusal.Types, "want group/version/Kind"},
			{seV1, "a b c d", codes.ResourceExhausted, refusal.Names, "more than 3 resource names"},
			{seV1, strings.Repeat("n", 101), codes.ResourceExhausted, refusal.Names, "names of more than 100 bytes"},
			{seV1, strings.Repeat("n", MaxName+1), codes.InvalidArgument, refusal.Names, "no resource has more"},
		} {
			c := newClient(t, delta)
			var err error
			for _, typeURL := range strings.Fields(tc.typeURL) {
				_, err = c.ask(typeURL, tc.names, "", "")
			}
			e, ok := err.(*refusal.Error) //nolint:errorlint // it is not wrapped
			if !ok || e.Reason != tc.why || status.Code(err) != tc.code || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("delta %v, %.20q, %.20q: %v, want %v with %q", delta, tc.typeURL, tc.names, err, tc.code, tc.text)
			}
		}
	}
}

// TestVersionsOfAClientAreForgottenOnceTheyAreCompared: and counted until then.
func TestVersionsOfAClientAreForgottenOnceTheyAreCompared(t *testing.T) {
	c := newClient(t, true)
	req := &Request{TypeURL: seV1, Versions: map[string]string{"shop/gone": "1"}}
	if _, err := c.set.Request(req, Limits{Types: 1}, time.Time{}); err != nil {
		t.Fatal(err)
	}
	if n := c.set.Usage().Versions; n == 0 {
		t.Error("versions are not counted")
	}
	c.answer()
	if n := c.set.Usage().Versions; n != 0 || c.set.Watch(seV1).clientVersions != nil {
		t.Errorf("%d bytes are counted, and %v is kept", n, c.set.Watch(seV1).clientVersions)
	}
}
