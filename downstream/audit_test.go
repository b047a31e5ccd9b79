package downstream

import (
	"crypto/tls"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"meshrelay/audit"
	"meshrelay/downstream/refusal"
)

// recorder keeps the lines of the audit log.
type recorder struct {
	mu    sync.Mutex
	lines []audit.Line
}

func (r *recorder) Record(line audit.Line) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, line)
}

// of returns the lines of an event.
func (r *recorder) of(event audit.Event) (lines []audit.Line) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, line := range r.lines {
		if line.Event == event {
			lines = append(lines, line)
		}
	}
	return lines
}

// refused returns the lines about clients that were refused for a reason.
func (r *recorder) refused(why refusal.Reason) []audit.Line {
	return slices.DeleteFunc(r.of(audit.ClientRefused), func(line audit.Line) bool { return line.Reason != string(why) })
}

// TestEachReasonToRefuseMakesOneLine, and one more that the client's stream has ended.
func TestEachReasonToRefuseMakesOneLine(t *testing.T) {
	_, set, client := mutualTLS(t)
	r := startRelay(t, true, set)
	for _, why := range refusal.Reasons() {
		t.Run(string(why), func(t *testing.T) {
			r.audit.mu.Lock()
			r.audit.lines = nil
			r.audit.mu.Unlock()
			d := r.delta(client("one", time.Hour))
			d.send(subscribeDelta(seV1))
			r.eventually(t, "it is known", func() bool { return len(r.server.Clients()) == 1 })
			r.server.connections()[0].end(refusal.New(why, codes.ResourceExhausted, "too much of it"))
			_ = d.end()
			r.eventually(t, "the stream has ended", func() bool { return r.server.open.Load() == 0 && len(r.audit.refused(why)) > 0 })
			for event, want := range map[audit.Event]audit.Line{
				audit.ClientConnected: {},
				audit.ClientRefused:   {Code: "ResourceExhausted", Reason: string(why), Error: "too much of it"},
				audit.ClientEnded:     {Code: "ResourceExhausted", Reason: string(why), Error: "too much of it"},
			} {
				lines := r.audit.of(event)
				if len(lines) != 1 {
					t.Errorf("%d lines %s: %+v", len(lines), event, lines)
					continue
				}
				got := lines[0]
				want.Event, want.Listener, want.NodeID, want.Address, want.Identity = event, "127.0.0.1:0", node().Id, got.Address, got.Identity
				if got != want || !strings.HasPrefix(got.Address, "127.0.0.1:") || got.Identity != "dns:client" {
					t.Errorf("%+v, want %+v", got, want)
				}
			}
		})
	}
}

func TestAClientThatLeavesIsALineWithoutAReason(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) { c.Views = []View{namespaces("shop", node().Id, "shop")} })
	d := r.delta()
	d.send(subscribeDelta(seV1))
	d.next()
	d.cancel()
	r.eventually(t, "it has left", func() bool { return len(r.audit.of(audit.ClientEnded)) == 1 })
	connected, ended := r.audit.of(audit.ClientConnected), r.audit.of(audit.ClientEnded)
	if len(connected) != 1 || connected[0].View != "shop" || connected[0].Identity != "" {
		t.Errorf("%+v", connected)
	}
	if line := ended[0]; line.View != "shop" || line.Reason != "" || line.Address != connected[0].Address || len(r.audit.of(audit.ClientRefused)) != 0 {
		t.Errorf("%+v", line)
	}
}

// TestAnotherViewOfAClientIsALine: a reload decides what it sees from now on.
func TestAnotherViewOfAClientIsALine(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) { c.Views = []View{namespaces("shop", node().Id, "shop")} })
	d := r.delta()
	d.send(subscribeDelta(seV1))
	d.next()
	for range 2 { // the second reload moves nobody
		if err := r.server.Reload(t.Context(), Access{Views: []View{namespaces("bank", node().Id, "bank")}}, Limits{}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if lines := r.audit.of(audit.ClientMoved); len(lines) != 1 || lines[0].View != "bank" || lines[0].NodeID != node().Id {
		t.Errorf("%+v", lines)
	}
}

func TestAFailedHandshakeIsOneLine(t *testing.T) {
	_, set, _ := mutualTLS(t)
	r := startRelay(t, true, set)
	c, err := tls.Dial("tcp", r.addr, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}) // the server is ours
	if err == nil {
		c.Close()
		t.Fatal("it has succeeded without a certificate")
	}
	wantRefused(t, r, refusal.Handshake, 1)
	if line := r.audit.refused(refusal.Handshake)[0]; line.Listener != "127.0.0.1:0" || line.Identity != "" {
		t.Errorf("%+v", line)
	}
}

func TestTheIDOfANodeInALineIsBounded(t *testing.T) {
	r := startRelay(t, true)
	r.deltaBy(strings.Repeat("n", 2000), seV1).next()
	if lines := r.audit.of(audit.ClientConnected); len(lines) != 1 || len(lines[0].NodeID) > maxAuditedNode+len("…") {
		t.Errorf("%+v", lines)
	}
}
