package xds

import (
	"context"
	"encoding/json"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"meshrelay/adsclient"
	"meshrelay/config"
	"meshrelay/internal/recording"
	"meshrelay/internal/text"
	"meshrelay/upstreams"
)

// record connects to an upstream as its source does, and gives add what goes over the streams, in
// order and one record at a time, until ctx ends or add fails. It returns the error of add. Every
// response is accepted. The second stream, for endpoints of services, is not recorded.
func record(ctx context.Context, cfg config.Upstream, env upstreams.Env, add func(recording.Record) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	r := &recorder{add: add, stop: stop}
	client := clientConfig(cfg, env)
	client.Met = r.met
	client.DialOptions = append(client.DialOptions, grpc.WithChainStreamInterceptor(r.open))
	c, err := adsclient.New(client, r)
	if err != nil {
		return err
	}
	if err := c.Run(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// recorder is the adsclient.Handler of a recording.
type recorder struct {
	stop context.CancelCauseFunc

	mu     sync.Mutex // held while add is called, which never calls back
	add    func(recording.Record) error
	failed error // of add; nothing is recorded after it
}

func (r *recorder) take(rec recording.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed != nil {
		return
	}
	if r.failed = r.add(rec); r.failed != nil {
		r.stop(r.failed)
	}
}

// open is a grpc.StreamClientInterceptor: it sees streams and requests.
func (r *recorder) open(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := streamer(ctx, desc, conn, method, opts...)
	if err != nil {
		return nil, err
	}
	delta := strings.HasSuffix(method, "/DeltaAggregatedResources")
	_, address, _ := strings.Cut(conn.Target(), ":///")
	r.take(recording.Record{Kind: recording.Opened, Delta: delta, Data: []byte(address)})
	return &recordedStream{stream, r, delta}, nil
}

// recordedStream records the requests of a stream.
type recordedStream struct {
	grpc.ClientStream
	recorder *recorder
	delta    bool
}

// SendMsg implements grpc.ClientStream.
func (s *recordedStream) SendMsg(m any) error {
	if message, ok := m.(proto.Message); ok {
		if data, err := proto.Marshal(message); err == nil { // else gRPC fails, too
			s.recorder.take(recording.Record{Kind: recording.Request, Delta: s.delta, Data: data})
		}
	}
	return s.ClientStream.SendMsg(m)
}

// met records what a server tells of itself.
func (r *recorder) met(p adsclient.Peer) {
	if data, err := json.Marshal(recording.Peer{Relay: p.Relay, Name: p.Name}); err == nil { // it has a bool and a text
		r.take(recording.Record{Kind: recording.Server, Data: data})
	}
}

// HandleResponse implements adsclient.Handler.
func (r *recorder) HandleResponse(resp *adsclient.Response) error {
	r.take(recording.Record{Kind: recording.Response, Delta: resp.Delta, Data: resp.Encoded()})
	return nil
}

// ResumeVersions implements adsclient.Handler: each stream brings everything.
func (r *recorder) ResumeVersions(string) map[string]string { return nil }

// maxReason bounds, in bytes, why a stream has ended.
const maxReason = 4 << 10

// HandleState implements adsclient.Handler.
func (r *recorder) HandleState(s adsclient.State) {
	if s.Phase != adsclient.Disconnected && s.Phase != adsclient.Denied {
		return
	}
	reason := "the server ended the stream"
	if s.Err != nil {
		reason = s.Err.Error()
	}
	r.take(recording.Record{Kind: recording.Closed, Delta: s.Protocol == adsclient.Delta, Data: []byte(text.Shorten(reason, maxReason))})
}
