package adsclient

import (
	"errors"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"meshrelay/internal/text"
)

// read passes responses to the handler until the stream ends. It never waits for the writer: a
// server that sends without reading would then block both.
func (s *stream) read() (answered bool, err error) {
	for {
		resp, err := s.receive()
		if err != nil {
			return answered, err
		}
		if !answered && s.protocol == SotW {
			if err := s.greet(); err != nil {
				resp.free()
				return false, err
			}
		}
		ack, err := s.handle(resp, !answered)
		answered = true
		resp.free()
		s.receiver.handled()
		if err != nil {
			return answered, err
		}
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

// handle passes a response to the handler, and returns its acknowledgement or nil. begins: it is the
// first one of the stream. An error ends the stream.
func (s *stream) handle(resp *Response, begins bool) (ack proto.Message, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if begins {
		peer, _ := s.peer() // the headers come with the first response, or before
		s.client.health.connected(s.number, s.client.log)
		s.client.handler.HandleState(State{Phase: Connected, Address: s.address, Protocol: s.protocol, Relay: peer.Relay, Server: s.certificate()})
	}
	if s.named() {
		resp.Complete = false // it has only changes
	}
	if s.complete[resp.TypeURL] {
		resp.Complete = true
		if !resp.Part {
			delete(s.complete, resp.TypeURL)
		}
	}
	if asked := s.relisted[resp.TypeURL]; asked != nil && !s.waiting[resp.TypeURL] {
		resp.Relist = asked.CompareAndSwap(true, resp.Part) && !s.silent[resp.TypeURL]
	}
	rejected := s.client.handler.HandleResponse(resp)
	if bad, is := errors.AsType[*DeltaError](rejected); resp.Delta && is {
		return nil, bad
	}
	ack = s.acknowledge(resp, rejected)
	if s.waiting[resp.TypeURL] {
		s.firsts.Add(1)
	}
	if !resp.Part {
		delete(s.silent, resp.TypeURL)
		s.markAnswered(resp.TypeURL)
	}
	return ack, nil
}

// receive returns the next response. The caller frees it.
func (s *stream) receive() (*Response, error) {
	var m rawMessage
	if err := s.grpc.RecvMsg(&m); err != nil {
		return nil, err
	}
	s.receiver.handle()
	resp, err := Parse(m.buffers, s.protocol == Delta)
	if err != nil {
		m.buffers.Free()
		return nil, status.Error(codes.DataLoss, err.Error())
	}
	return resp, nil
}

// markAnswered notes the answer for a type, or that none is awaited. With names, which are answered in
// parts, one answer is enough. The caller holds mu.
func (s *stream) markAnswered(typeURL string) {
	if len(s.waiting) == 0 {
		return
	}
	delete(s.waiting, typeURL)
	if s.named() {
		clear(s.waiting)
	}
	s.receiver.progress.Add(1)
	if len(s.waiting) == 0 {
		s.syncedAt = time.Now()
		s.client.health.works(s.number)
		if hook := s.client.cfg.onSync; hook != nil {
			hook(s.address)
		}
		close(s.synced)
	}
}

// acknowledge returns the ACK or NACK of a response. It returns nil for a response without a nonce:
// an empty nonce would ask for it again (PROTOCOL C6).
func (s *stream) acknowledge(resp *Response, rejected error) proto.Message {
	if resp.Nonce == "" {
		return nil
	}
	var detail *rpcstatus.Status
	if rejected != nil {
		detail = &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: text.Shorten(toValidUTF8(rejected.Error()), maxDetail)}
	}
	accepted := s.accepted[resp.TypeURL]
	if rejected == nil {
		accepted = resp.Version
		if s.relisted[resp.TypeURL] != nil { // subscribed types only: a server could name any number
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
