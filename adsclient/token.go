package adsclient

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Token are credentials that send a bearer token. Each stream reads it, so that it uses a rotated token (PROTOCOL C19).
// A token that can not be read, or that a server denies, does not replace one that this server took: streams to it go on
// with that one until it is denied, too. The token is not sent without TLS. Any goroutine may call the methods.
type Token struct {
	place string // where to mend it
	read  func() (string, error)
	// Denied, unless nil, is called when a server does not accept a token.
	Denied func()

	mu sync.Mutex
	of map[string]*taken // by the target of the connection
}

// taken is what a server has said to tokens.
type taken struct {
	good, denied string // empty for none
	why          error  // of the denial
	at           time.Time
}

// deniedFor is how long a denied token is not tried again while there is a good one: rights may come later.
const deniedFor = 10 * time.Minute

// TokenFile returns a Token whose token is in a file. A client that is to keep a token needs its Stream, too.
func TokenFile(path string) *Token {
	return TokenFrom(path, func() (string, error) {
		b, err := os.ReadFile(path)
		token := strings.TrimSpace(string(b))
		if err != nil {
			return "", fmt.Errorf("token file: %w", err)
		} else if token == "" {
			return "", fmt.Errorf("token file %s is empty", path)
		}
		return token, nil
	})
}

// TokenFrom returns a Token that read gives. place tells where to mend it. Any goroutine calls read.
func TokenFrom(place string, read func() (string, error)) *Token {
	return &Token{place: place, read: read, of: map[string]*taken{}}
}

// Kept returns why a token of before is in use, empty if none is.
func (f *Token) Kept() string {
	token, err := f.read()
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []string
	for target, t := range f.of {
		why := err
		if err == nil && token == t.denied {
			why = fmt.Errorf("%s: %w", strings.TrimPrefix(target, "passthrough:///"), t.why)
		}
		if t.good != "" && why != nil {
			all = append(all, fmt.Sprintf("the token of before is used, until it is denied, too: %v; mend %s", why, f.place))
		}
	}
	return strings.Join(slices.Compact(slices.Sorted(slices.Values(all))), "; ")
}

// tokenStream is a stream that learns whether its token is taken.
type tokenStream struct {
	grpc.ClientStream
	file          *Token
	target, token string
	judged        bool
}

type tokenKey struct{}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (f *Token) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	token, err := f.read()
	if s, is := ctx.Value(tokenKey{}).(*tokenStream); is {
		f.mu.Lock()
		if t := f.of[s.target]; t != nil && t.good != "" && (err != nil || token == t.denied && time.Since(t.at) < deniedFor) {
			token, err = t.good, nil
		}
		f.mu.Unlock()
		s.token = token
	}
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (*Token) RequireTransportSecurity() bool { return true }

// Stream is a grpc.StreamClientInterceptor that learns which tokens servers take.
func (f *Token) Stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (_ grpc.ClientStream, err error) {
	s := &tokenStream{file: f, target: cc.Target()}
	if s.ClientStream, err = next(context.WithValue(ctx, tokenKey{}, s), desc, cc, method, opts...); err != nil {
		return nil, err
	}
	return s, nil
}

// RecvMsg implements grpc.ClientStream.
func (s *tokenStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if !s.judged && (err == nil || denied(err)) {
		s.judged = true
		s.file.judge(s.target, s.token, err)
		if s.file.Denied != nil && status.Code(err) == codes.Unauthenticated {
			s.file.Denied()
		}
	}
	return err
}

// judge notes what a server says to a token: its denial, or nil.
func (f *Token) judge(target, token string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.of[target]
	switch {
	case err == nil && (t == nil || token != t.good):
		f.of[target] = &taken{good: token}
	case err == nil: // the one of the file is still denied
	case t != nil && token == t.good:
		delete(f.of, target)
	case t != nil:
		t.denied, t.why, t.at = token, bounded(err), time.Now()
	}
}
