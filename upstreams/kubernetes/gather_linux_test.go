package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"
)

// reads counts the reads of a connection.
type reads struct {
	net.Conn
	n int
}

func (r *reads) Read(p []byte) (int, error) {
	r.n++
	return r.Conn.Read(p)
}

// pairOf returns both ends of a connection, the first of which gathers.
func pairOf(t *testing.T, g *gatherer) (*gathering, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := g.DialContext(context.Background(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); other.Close() })
	return c.(*gathering), other
}

// sent writes some bytes in small pieces, and ends the connection if it is the end.
func sent(t *testing.T, c net.Conn, size int, end bool) (all []byte) {
	r := rand.NewChaCha8([32]byte{})
	all = make([]byte, size)
	_, _ = r.Read(all)
	go func() {
		for rest := all; len(rest) > 0; {
			n := min(len(rest), 1000)
			if _, err := c.Write(rest[:n]); err != nil {
				t.Error(err)
				return
			}
			rest = rest[n:]
		}
		if end {
			c.Close()
		}
	}()
	return all
}

func TestListsAreReadInLargePieces(t *testing.T) {
	g := &gatherer{}
	g.lists.Add(1)
	c, other := pairOf(t, g)
	began := time.Now()
	all := sent(t, other, 4<<20, true)
	got := make([]byte, gatherAfter+gathered)
	if _, err := io.ReadFull(c, got); err != nil {
		t.Fatal(err)
	}
	counted := &reads{Conn: c.Conn}
	c.Conn = counted // its space is there, and its socket waits
	rest, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(append(got, rest...), all) {
		t.Fatalf("other bytes than were sent, %v", err)
	}
	// Twice: what a read has left is read before any more is waited for.
	if most := 2*len(all)/gatherSpace + int(time.Since(began)/gatherMost) + 10; counted.n > most {
		t.Errorf("%d reads, want %d at most", counted.n, most)
	}
}

func TestNothingWaitsForMoreWhileNoListComes(t *testing.T) {
	g := &gatherer{}
	c, other := pairOf(t, g)
	for _, size := range []int{10, 1 << 20, 10} { // without, with and without a list again
		lists := size > gatherAfter
		if lists {
			g.lists.Add(1)
		}
		all, got := sent(t, other, size, false), make([]byte, size)
		if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, all) {
			t.Fatalf("other bytes than were sent, %v", err)
		}
		if gathers := c.space != nil; gathers != lists {
			t.Errorf("%d bytes: it gathers: %t", size, gathers)
		}
		if lists {
			g.lists.Add(-1)
		}
	}
}

func TestASmallListIsNotWaitedFor(t *testing.T) {
	g := &gatherer{}
	g.lists.Add(1)
	c, other := pairOf(t, g)
	sent(t, other, gatherAfter-1, false)
	if _, err := io.ReadFull(c, make([]byte, gatherAfter-1)); err != nil || c.space != nil {
		t.Errorf("it gathers: %t, %v", c.space != nil, err)
	}
}

func TestDeadlinesOfOthersHoldWhileListsCome(t *testing.T) {
	g := &gatherer{}
	g.lists.Add(1)
	c, other := pairOf(t, g)
	size := gatherAfter + gatherSpace
	sent(t, other, size, false)
	if _, err := io.ReadFull(c, make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	waits := make(chan error, 1)
	go func() {
		_, err := c.Read(make([]byte, 1))
		waits <- err
	}()
	for _, set := range []func(time.Time) error{c.SetDeadline, c.SetReadDeadline} {
		if err := set(time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		if err := <-waits; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the read ends with %v", err)
		}
		_, err := c.Read(make([]byte, 1))
		waits <- err
	}
	if err := <-waits; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the read ends with %v", err)
	}
	if err := c.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := c.Read(make([]byte, 1))
		waits <- err
	}()
	for range 100 { // before the read, and while it waits
		if err := c.SetDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	sent(t, other, 1, false)
	if err := <-waits; err != nil {
		t.Errorf("without a deadline: %v", err)
	}
}
