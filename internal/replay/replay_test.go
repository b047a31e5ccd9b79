package replay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/internal/recording"
	"meshrelay/internal/testing/fakexds"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const typeURL = "networking.istio.io/v1/ServiceEntry"

func entry(name string) *anypb.Any {
	return fakexds.MCP("shop/"+name[:1], &networking.ServiceEntry{Hosts: []string{name + ".example.com"}}).Any
}

// encodedMessage returns the bytes of a message.
func encodedMessage(t *testing.T, m proto.Message) []byte {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// sotw returns a record of a full answer at a second.
func sotw(t *testing.T, second int, names ...string) recording.Record {
	resp := &discoveryv3.DiscoveryResponse{TypeUrl: typeURL, Nonce: fmt.Sprint("n", second), VersionInfo: fmt.Sprint("v", second)}
	for _, name := range names {
		resp.Resources = append(resp.Resources, entry(name))
	}
	return recording.Record{Kind: recording.Response, At: time.Duration(second) * time.Second, Data: encodedMessage(t, resp)}
}

// delta returns a record of an incremental answer. A name with a leading - is removed.
func delta(t *testing.T, second int, version string, names ...string) recording.Record {
	resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, Nonce: "n", SystemVersionInfo: version}
	for _, name := range names {
		if gone, removed := strings.CutPrefix(name, "-"); removed {
			resp.RemovedResources = append(resp.RemovedResources, "shop/"+gone)
			continue
		}
		resp.Resources = append(resp.Resources, &discoveryv3.Resource{Name: "shop/" + name[:1], Version: "v-" + name, Resource: entry(name)})
	}
	return recording.Record{Kind: recording.Response, Delta: true, At: time.Duration(second) * time.Second, Data: encodedMessage(t, resp)}
}

func opened(second int) recording.Record {
	return recording.Record{Kind: recording.Opened, At: time.Duration(second) * time.Second, Data: []byte("127.0.0.1:15010")}
}

// reader returns a reader of a recording of records.
func reader(t *testing.T, records ...recording.Record) *recording.Reader {
	t.Helper()
	var b bytes.Buffer
	w, err := recording.NewWriter(&b, recording.Header{Upstream: "east"}, 1<<30)
	for _, r := range records {
		if err == nil {
			err = w.Add(r)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	r, err := recording.NewReader(&b)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// hostsOf returns the first host of each element of a message.
func hostsOf(data []byte) (hosts []string) {
	for _, part := range strings.Split(string(data), ".example.com")[:strings.Count(string(data), ".example.com")] {
		hosts = append(hosts, part[strings.LastIndexFunc(part, func(r rune) bool { return r < 'a' || r > 'z' })+1:])
	}
	return hosts
}

// TestTheStateAfterEachRecord: what a server has after SotW answers, delta answers, parts, and new
// streams.
func TestTheStateAfterEachRecord(t *testing.T) {
	for _, c := range []struct {
		name    string
		records []recording.Record
		want    [][]string // after each record; nil where nothing changed
	}{
		{"sotw", []recording.Record{opened(0), sotw(t, 1, "b", "a"), sotw(t, 2, "a", "ax"), sotw(t, 3)}, [][]string{nil, {"b", "a"}, {"a", "ax"}, {}}},
		{"delta", []recording.Record{opened(0), delta(t, 1, "1", "b", "a"), delta(t, 2, "2", "c", "bx"), delta(t, 3, "3", "-a")}, [][]string{nil, {"b", "a"}, {"bx", "a", "c"}, {"bx", "c"}}},
		{"parts", []recording.Record{opened(0), delta(t, 1, "part", "a"), delta(t, 1, "1", "b"), delta(t, 2, "part", "c"), delta(t, 2, "2", "-a")}, [][]string{nil, nil, {"a", "b"}, nil, {"b", "c"}}},
		{"a new stream brings everything", []recording.Record{opened(0), delta(t, 1, "1", "a", "b"), delta(t, 1, "part", "d"), opened(2), delta(t, 3, "1", "b", "c")}, [][]string{nil, {"a", "b"}, nil, nil, {"b", "c"}}},
		{"one name twice", []recording.Record{opened(0), delta(t, 1, "1", "a"), delta(t, 2, "2", "b", "bx")}, [][]string{nil, {"a"}, {"a", "bx"}}},
	} {
		f := newFold()
		for i, rec := range c.records {
			got, err := f.step(rec)
			if err != nil {
				t.Fatal(err)
			}
			if (got == nil) != (c.want[i] == nil) {
				t.Fatalf("%s: record %d: %v", c.name, i, got)
			}
			if got == nil {
				continue
			}
			names := []string{}
			for _, r := range got.resources {
				names = append(names, hostsOf(r.body)...)
			}
			if diff := cmp.Diff(c.want[i], names); diff != "" {
				t.Errorf("%s: record %d: %s", c.name, i, diff)
			}
		}
	}
}

func TestAnAnswerThatIsCutIsServedAtTheEnd(t *testing.T) {
	f := newFold()
	for _, rec := range []recording.Record{opened(0), delta(t, 1, "1", "a"), delta(t, 2, "part", "b")} {
		if _, err := f.step(rec); err != nil {
			t.Fatal(err)
		}
	}
	changed := f.finish()
	if len(changed) != 1 || len(changed[0].resources) != 2 || len(f.finish()) != 0 {
		t.Errorf("%v", changed)
	}
}

// sent is a response to a client, at a time.
type sent struct {
	at    time.Duration
	hosts []string
}

// TestChangesComeAtTheirTimes: the first answer comes with the first client, changes after as much time as
// had passed, and with --speed in a part of it. Both protocols see every state, in order.
func TestChangesComeAtTheirTimes(t *testing.T) {
	records := []recording.Record{opened(0), sotw(t, 5, "a"), sotw(t, 15, "a", "b"), sotw(t, 15), sotw(t, 35, "b", "c"), {Kind: recording.End, At: time.Minute}}
	for _, speed := range []float64{1, 10} {
		second := func(n float64) time.Duration { return time.Duration(n * float64(time.Second) / speed) }
		for _, isDelta := range []bool{false, true} {
			want := []sent{{0, []string{"a"}}, {second(10), []string{"a", "b"}}, {second(10), nil}, {second(30), []string{"b", "c"}}}
			if isDelta {
				want[1].hosts = []string{"b"}
			}
			synctest.Test(t, func(t *testing.T) {
				summary, err := Inspect(reader(t, records...))
				if err != nil {
					t.Fatal(err)
				}
				s := New(summary, speed, func(string) {})
				ctx, cancel := context.WithCancel(t.Context())
				played := make(chan error)
				go func() { played <- s.play(ctx, reader(t, records...)) }()
				time.Sleep(time.Hour) // nothing passes before there is a client
				var got []sent
				start := time.Now()
				st := &stream{delta: isDelta, known: s.known, asked: map[string]*subscription{}, updates: make(chan *typeState), done: make(chan struct{}),
					send: func(m encoded) error {
						got = append(got, sent{time.Since(start), hostsOf(m)})
						return nil
					}}
				s.add(st)
				close(s.begun)
				requests := make(chan request, 1)
				requests <- request{url: typeURL}
				ended := make(chan error)
				go func() { ended <- st.run(ctx, requests) }()
				if err := <-played; err != nil {
					t.Error(err)
				}
				cancel()
				if err := <-ended; !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				if diff := cmp.Diff(want, got, cmp.AllowUnexported(sent{})); diff != "" {
					t.Errorf("speed %v, delta %v: %s", speed, isDelta, diff)
				}
			})
		}
	}
}

// TestAServerThatEndsBeforeItServesEndsInOrder: gRPC tells that it was stopped, and that is no error.
func TestAServerThatEndsBeforeItServesEndsInOrder(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 { // either may come first
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if err := New(Summary{}, 1, func(string) {}).Serve(ctx, lis, nil); err != nil {
			t.Fatal(err)
		}
	}
}

func TestInspectTellsWhatIsThere(t *testing.T) {
	s, err := Inspect(reader(t, opened(0), opened(1), delta(t, 2, "1", "a", "b"), opened(3), delta(t, 9, "2", "b")))
	if err != nil {
		t.Fatal(err)
	}
	if s.Streams != 2 || s.Responses != 2 || s.Resources() != 1 || s.Last-s.First != 7*time.Second || !s.Delta || s.Address != "127.0.0.1:15010" || s.Torn == nil {
		t.Errorf("%+v", s)
	}
}

func TestInspectRefusesWhatCanNotBeServed(t *testing.T) {
	bad := recording.Record{Kind: recording.Response, Data: []byte{0xff}}
	for want, records := range map[string][]recording.Record{
		"it has no response of upstream east": {opened(0), {Kind: recording.End}},
		"response does not decode":            {bad},
		"the description of the server":       {{Kind: recording.Server, Data: []byte("{")}},
	} {
		if _, err := Inspect(reader(t, records...)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
