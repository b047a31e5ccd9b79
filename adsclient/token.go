package adsclient

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"

	"google.golang.org/grpc"
)

// Token are credentials that send the token in a file as a bearer token. Each stream reads the file, so that it
// uses a rotated token (PROTOCOL C19). A token that can not be read, or that a server denies, does not replace one that
// a server took: streams go on with that one until it is denied, too. The token is not sent without TLS. Any goroutine may
// call the methods.
type Token struct {
	path string

	mu           sync.Mutex
	good, denied string // tokens, empty for none
	kept         string // Kept
}

// TokenFile returns a Token. A client that is to keep a token needs its Stream, too.
func TokenFile(path string) *Token { return &Token{path: path} }

// Kept returns why the token of before is in use, empty if it is not.
func (f *Token) Kept() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.kept
}

// sent is the key of the token of a stream in its context, a *string.
type sent struct{}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (f *Token) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	b, err := os.ReadFile(f.path)
	token := strings.TrimSpace(string(b))
	if err != nil {
		err = fmt.Errorf("token file: %w", err)
	} else if token == "" {
		err = fmt.Errorf("token file %s is empty", f.path)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.good == "" && err != nil:
		return nil, err
	case f.good == "":
	case err != nil:
		f.keep(err)
		token = f.good
	case token == f.denied:
		token = f.good
	default:
		f.kept = ""
	}
	if to, is := ctx.Value(sent{}).(*string); is {
		*to = token
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// keep sets kept. The caller holds mu.
func (f *Token) keep(why error) {
	f.kept = fmt.Sprintf("the token of before is used, until it is denied, too: %v; mend %s", why, f.path)
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (*Token) RequireTransportSecurity() bool { return true }

// Stream is a grpc.StreamClientInterceptor that learns which tokens servers take.
func (f *Token) Stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	token := new(string)
	s, err := next(context.WithValue(ctx, sent{}, token), desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &tokenStream{ClientStream: s, file: f, token: *token}, nil
}

type tokenStream struct {
	grpc.ClientStream
	file   *Token
	token  string
	judged bool
}

// RecvMsg implements grpc.ClientStream.
func (s *tokenStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if !s.judged && (err == nil || denied(err)) {
		s.judged = true
		s.file.judge(s.token, err)
	}
	return err
}

// judge notes what a server says to a token: its denial, or nil.
func (f *Token) judge(token string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil:
		if f.good = token; token == f.denied {
			f.denied, f.kept = "", ""
		}
	case token == f.good:
		f.good, f.kept = "", ""
	case f.good != "":
		f.denied = token
		f.keep(bounded(err))
	}
}
