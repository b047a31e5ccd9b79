package attacks

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
)

// worstMore is how many resources the honest upstream has more, while a peer does its worst.
const worstMore = 500

// doItsWorst has one peer ask for everything again and again on a thousand streams, for other names, reject all that
// it is sent, and open new streams, while a client that means well has to be served each change, and new ones are let
// in. What was done for each of them is counted.
func doItsWorst(s *stage, _ int) {
	const streams, changes = 1000, 5
	good, err := s.connect(bystander, "")
	if err != nil {
		s.Error(err)
		return
	}
	before := good.get("shop/cart")
	var done atomic.Bool
	begun := make(chan struct{}) // closed when half of the streams have been answered
	var answered atomic.Int64
	// More names are refused, and end the stream.
	names := repeat(deltaNames, 50, func(i int) string { return fmt.Sprintf("many/s-%d", i) })
	leave := repeat(deltaLeave, 50, func(i int) string { return fmt.Sprintf("many/s-%d", i) })
	attackOnce := func(i int) (err error) {
		ctx, cancel := context.WithCancel(s.ctx)
		defer cancel()
		stream, err := s.shared(i%20).NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, delta)
		if err != nil {
			return err
		}
		err = stream.SendMsg(raw(join(text(deltaType, entryType), field(deltaNode, node(nil)))))
		for first := true; err == nil && !done.Load(); first = false {
			var resp discoveryv3.DeltaDiscoveryResponse
			if err = stream.RecvMsg(&resp); err != nil {
				break
			}
			if first && answered.Add(1) == streams/2 {
				close(begun)
			}
			for _, request := range [][]byte{
				join(text(deltaType, entryType), text(6, resp.Nonce), field(deltaError, text(2, "worst"))),
				join(text(deltaType, entryType), names), join(text(deltaType, entryType), leave),
				join(text(deltaType, entryType), text(deltaNames, "*")),
			} {
				if err == nil {
					err = stream.SendMsg(raw(request))
				}
			}
			if i%4 == 0 {
				return nil // and open another
			}
		}
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		together(streams, func(i int) {
			for !done.Load() {
				if err := attackOnce(i); err != nil && !done.Load() {
					s.tell("%v", err)
				}
			}
		})
	}()
	<-begun
	for n := range changes {
		was := good.get("shop/cart")
		s.setEast(n+1, worstMore)
		s.east.Push(entryType)
		s.await("a change to be served", func() bool { return good.get("shop/cart") != was })
		if _, err := s.connect(newcomer, ""); err != nil {
			s.Errorf("a new client is refused: %v", err)
		}
	}
	if _, err := good.all(); err != nil {
		s.Errorf("the client that means well has lost its stream: %v", err)
	}
	s.setEast(0, worstMore)
	s.east.Push(entryType)
	s.await("what peers cost to be counted", func() bool {
		_, body := s.get("/debug/peers")
		var peers []struct {
			Peer                      string
			Requests, Rejected, Bytes uint64
		}
		err := json.Unmarshal([]byte(body), &peers)
		s.tell("%.4096s", body)
		return err == nil && len(peers) > 1 && peers[0].Peer == attacker && peers[0].Requests > 4*streams && peers[0].Rejected > streams && peers[0].Bytes > 10*peers[1].Bytes
	})
	done.Store(true)
	for i := range 20 {
		s.shared(i).Close()
	}
	<-ended
	s.await("all is as before", func() bool { return good.get("shop/cart") == before })
}
