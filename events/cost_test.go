package events

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"meshrelay/mirror"
	"meshrelay/state/local"
)

const (
	// busyRate changes come in a busy second, of busyUpstreams.
	busyRate      = 1000
	busyUpstreams = 10
	// maxChangeAllocs is what a change may allocate: its counts, names and groups, the event that is
	// made of it, and its part of the events and lines of its second.
	maxChangeAllocs = 7
)

// busy is a journal in the time of which changes come at busyRate: the time passes as fast as they are
// recorded.
type busy struct {
	journal *Journal
	now     time.Time
	due     time.Time // the journal's next tick, zero for none
	n       int
	names   []string
	keys    []mirror.Key
	// follow are the changes whose stages come next, append is the disk.
	follow []*Change
	append func([]byte) error
	lines  int
}

func newBusy(appendLines func([]byte) error) *busy {
	b := &busy{journal: New(), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), append: appendLines}
	b.journal.OnChange(func(c *Change) { b.follow = append(b.follow, c) })
	for i := range busyUpstreams {
		b.names = append(b.names, fmt.Sprintf("upstream-%d", i))
	}
	for i := range 500 {
		b.keys = append(b.keys, mirror.Key{Kind: mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}, Namespace: fmt.Sprintf("team-%d", i%20), Name: fmt.Sprintf("database-%d", i)})
	}
	return b
}

func (b *busy) clock() time.Time { return b.now }

// change has one more change recorded, as an upstream does it, and all that is due at its time: the
// stages of the one before, the journal's tick, and each second the disk.
func (b *busy) change() error {
	b.now = b.now.Add(time.Second / busyRate)
	for _, c := range b.follow {
		c.Reach(func(s *Stages) { s.Merged = b.now })
		c.Reach(func(s *Stages) { s.Pushed = b.now })
		c.Reach(func(s *Stages) { s.Half, s.All, s.Clients, s.Acknowledged = b.now, b.now, 100, 100 })
		c.Settle()
	}
	clear(b.follow)
	b.follow = b.follow[:0]
	r := &Resources{}
	r.Note(Modification, b.keys[b.n%len(b.keys)])
	b.journal.record(b.clock, Event{Type: Changed, Upstream: b.names[b.n%busyUpstreams], By: ByUpstream, Resources: r})
	select {
	case <-b.journal.wake:
		b.due = b.now
	default:
	}
	if !b.due.IsZero() && !b.now.Before(b.due) {
		b.due = b.journal.tick(b.now, false)
	}
	if b.n++; b.n%busyRate != 0 {
		return nil
	}
	for {
		lines := b.journal.Take()
		err := error(nil)
		if len(lines) > 0 {
			b.lines++
			err = b.append(lines)
		}
		if b.journal.Done(err == nil); len(lines) == 0 || err != nil {
			return err
		}
	}
}

// TestAChangeCostsTheJournalAFewAllocations: 1,000 changes a second are recorded, put together,
// followed, and made lines for the disk.
func TestAChangeCostsTheJournalAFewAllocations(t *testing.T) {
	b := newBusy(func([]byte) error { return nil })
	second := func() {
		for range busyRate {
			if err := b.change(); err != nil {
				t.Fatal(err)
			}
		}
	}
	second() // the ring and the buckets grow once
	second()
	before := b.lines
	got := testing.AllocsPerRun(5, second) / busyRate
	t.Logf("%.2f allocations a change", got)
	if got > maxChangeAllocs {
		t.Errorf("%.2f allocations a change, want %d at most", got, maxChangeAllocs)
	}
	if b.lines == before {
		t.Error("no line was made for the disk")
	}
	p := b.journal.Read(Query{Limit: 1000})
	total, staged := 0, 0
	for _, e := range p.Events {
		total += e.Resources.Total()
		if !e.Stages.Merged.IsZero() {
			staged++
		}
	}
	if total < 6*busyRate || staged == 0 {
		t.Errorf("%d changes in %d events, %d with stages: want all of them, and stages", total, len(p.Events), staged)
	}
}

// BenchmarkJournal is the cost of one of 1,000 changes a second, with stages and lines on the disk.
// The share is of one core, in the user and system time of the process.
func BenchmarkJournal(b *testing.B) {
	disk := local.New(b.TempDir(), nil)
	if _, err := disk.Open(); err != nil {
		b.Fatal(err)
	}
	defer disk.Close()
	busy := newBusy(disk.AppendJournal)
	b.ReportAllocs()
	before := cpuTime(b)
	for b.Loop() {
		if err := busy.change(); err != nil {
			b.Fatal(err)
		}
	}
	each := float64(cpuTime(b)-before) / float64(b.N)
	b.ReportMetric(each, "cpu-ns/op")
	b.ReportMetric(each*busyRate/float64(time.Second)*100, "%-of-a-core")
}

// cpuTime is what the process has used so far.
func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
