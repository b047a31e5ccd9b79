package adsclient

import (
	"runtime/debug"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// read hands responses to the handler until the stream ends. It never waits for the
// writer: a server that does not read requests while it sends would then wait for us.
//
// A panic ends the stream, and no more: another one is tried.
func (s *stream) read() (answered bool, err error) {
	defer func() {
		if r := recover(); r != nil {
			s.handling.Store(false)
			s.client.log.Error("panic while handling a response", "address", s.address, "panic", r, "stack", string(debug.Stack()))
			err = status.Error(codes.Internal, "internal error of this relay; its log has where")
		}
	}()
	for {
		resp, err := s.receive()
		if err != nil {
			return answered, err
		}
		if !answered {
			if s.protocol == SotW {
				if err := s.greet(); err != nil {
					resp.free()
					return false, err
				}
			}
			answered = true
			from := s.client.board.connected(s.number, s.client.log)
			s.client.handler.HandleState(State{
				Phase: Connected, Address: s.address, Protocol: s.protocol, Relay: s.relay || s.saysRelay(), Switched: from != "", From: from,
			})
		}
		if s.named() {
			resp.Complete = false // what it does not mention is as it was
		}
		if s.complete[resp.TypeURL] {
			resp.Complete = true
			delete(s.complete, resp.TypeURL)
		}
		if asked := s.relisted[resp.TypeURL]; asked != nil && !s.waiting[resp.TypeURL] {
			resp.Relist = asked.CompareAndSwap(true, false)
		}
		s.handling.Store(true)
		ack := s.acknowledge(resp, s.client.handler.HandleResponse(resp))
		s.handling.Store(false)
		s.settle(resp.TypeURL)
		resp.free()
		s.pool.handled()
		if ack == nil {
			continue
		}
		select {
		case s.out <- ack:
		default:
			return answered, errUnread
		}
	}
}

// receive returns the next response, which is to be freed.
func (s *stream) receive() (*Response, error) {
	var m rawMessage
	if err := s.grpc.RecvMsg(&m); err != nil {
		return nil, err
	}
	if s.client.cfg.Gzip {
		if err := m.unzip(s.client.cfg.MaxResponseBytes, s.pool); err != nil {
			return nil, err
		}
	}
	s.pool.handle()
	resp, err := parse(m.buffers, s.protocol == Delta)
	if err != nil {
		m.buffers.Free()
		return nil, status.Error(codes.DataLoss, err.Error())
	}
	return resp, nil
}

// saysRelay reports whether the headers, which have come with a response at the latest, are
// those of a relay.
func (s *stream) saysRelay() bool {
	md, err := s.grpc.Header()
	return err == nil && len(md.Get(relayHeader)) > 0
}

// settle notes that a type was answered. What is asked for by name is answered in parts:
// there, any answer is all.
func (s *stream) settle(typeURL string) {
	if len(s.waiting) == 0 {
		return
	}
	delete(s.waiting, typeURL)
	if s.named() {
		clear(s.waiting)
	}
	s.left.Store(int64(len(s.waiting)))
	if len(s.waiting) == 0 {
		s.syncedAt = time.Now()
		s.client.board.works(s.number)
		close(s.synced)
	}
}

// acknowledge returns the ACK or NACK of a response, nil when it has no nonce to
// acknowledge: an empty one would ask for it again (PROTOCOL C6).
func (s *stream) acknowledge(resp *Response, rejected error) proto.Message {
	if resp.Nonce == "" {
		return nil
	}
	var detail *rpcstatus.Status
	if rejected != nil {
		text := rejected.Error()
		if len(text) > maxDetail {
			text = text[:maxDetail] + "…"
		}
		detail = &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: toValidUTF8(text)}
	}
	accepted := s.accepted[resp.TypeURL]
	if rejected == nil {
		accepted = resp.Version
		if s.relisted[resp.TypeURL] != nil { // else a server could name types without end
			s.accepted[resp.TypeURL] = accepted
		}
	}
	if s.protocol == Delta {
		return &discoveryv3.DeltaDiscoveryRequest{TypeUrl: resp.TypeURL, ResponseNonce: resp.Nonce, ErrorDetail: detail}
	}
	return &discoveryv3.DiscoveryRequest{
		TypeUrl: resp.TypeURL, ResponseNonce: resp.Nonce, VersionInfo: accepted, ErrorDetail: detail,
	}
}
