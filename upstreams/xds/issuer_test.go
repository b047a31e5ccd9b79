package xds

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"meshrelay/config"
	"meshrelay/internal/jwt"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams"
)

// issuing is a place whose server takes tokens of an API server.
type issuing struct {
	*place
	api  *fakekube.Server
	tls  TLS
	kube string // path of the kubeconfig
	// life is the life of the tokens that the API server issues, 0 for that of the request. code, unless 0, is its
	// refusal, with a reason. The lock of api guards them.
	life   int
	code   int
	reason string

	mu      sync.Mutex
	tokens  []string // of the streams
	refuses string   // the token that the server denies
	less    bool     // it knows the token, and denies the request
}

const tokenPath = "/api/v1/namespaces/istio-system/serviceaccounts/reader/token"

func newIssuing(t *testing.T) *issuing {
	p := &issuing{place: &place{t: t, disk: disk{records: map[mirror.Key]state.Record{}}}, api: fakekube.New()}
	dir := t.TempDir()
	api := p.api.StartInMemory(t)
	p.kube, p.api.Fault = filepath.Join(dir, "kubeconfig"), p.issue
	fakekube.WriteKubeconfig(t, p.kube, api, "of the relay")
	p.tls = TLS{CAFile: filepath.Join(dir, "ca.crt"), ServerName: "example.com"} // of the same certificate, which lasts
	creds := credentials.NewServerTLSFromCert(&api.TLS.Certificates[0])
	lis := bufconn.Listen(1 << 20)
	p.lis.Store(lis)
	p.server = fakexds.Start(t, &fakexds.Server{Listener: lis, Options: []grpc.ServerOption{grpc.Creds(creds), grpc.StreamInterceptor(p.judge)}})
	p.server.Set(entryURL, entry("shop/a"))
	p.tune = func(s *Source) { s.issuer.client.Dial = fakekube.Dial }
	t.Cleanup(p.halt)
	return p
}

// judge notes the token of a stream, and denies it if it is the refused one.
func (p *issuing) judge(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	md, _ := metadata.FromIncomingContext(ss.Context())
	token := strings.Join(md.Get("authorization"), " and ")
	p.mu.Lock()
	p.tokens = append(p.tokens, token)
	bad, less := p.refuses != "" && "Bearer "+p.refuses == token, p.less
	p.mu.Unlock()
	if bad && less {
		return status.Error(codes.PermissionDenied, "not this one")
	} else if bad {
		return status.Error(codes.Unauthenticated, "who is it?")
	}
	return next(srv, ss)
}

func (p *issuing) upstream() config.Upstream {
	x := &Config{Addresses: []string{"server"}, Protocol: "auto", TLS: &p.tls, ResyncInterval: config.Duration(24 * time.Hour)}
	p.section(x)
	return config.Upstream{Name: "east", ClusterID: "east", Source: x, Limits: config.Limits{MaxResponseBytes: 1 << 20}}
}

func (p *issuing) section(x *Config) {
	x.Plaintext, x.TLS = false, &p.tls
	x.Token = &Token{Cluster: config.Cluster{Kubeconfig: p.kube}, ServiceAccount: "reader", Audience: "istio-ca"}
}

func (p *issuing) run(change ...func(*config.Upstream)) {
	p.begin(func(u *config.Upstream) {
		p.section(u.Source.(*Config))
		for _, f := range change {
			f(u)
		}
	})
}

// again ends the streams, and returns the token of the next one.
func (p *issuing) again() jwt.Claims {
	p.server.End(status.Error(codes.Unavailable, "again"))
	p.after(10 * time.Second)
	return p.last()
}

// last returns the claims of the token of the newest stream.
func (p *issuing) last() jwt.Claims {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.tokens) == 0 {
		p.t.Fatal("there was no stream")
	}
	token, _ := strings.CutPrefix(p.tokens[len(p.tokens)-1], "Bearer ")
	c, ok := jwt.Look(token)
	if !ok {
		p.t.Fatalf("the stream has the token %q", token)
	}
	return c
}

func (p *issuing) streams() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.tokens)
}

func (p *issuing) asked() int { return p.api.Asked("POST " + tokenPath) }

// refuse has the API server refuse token requests from now on, or no longer with 0.
func (p *issuing) refuse(code int, reason string) {
	p.api.Set(func() { p.code, p.reason = code, reason })
}

// issue is a fakekube.Server.Fault: it answers a TokenRequest with a JWT that nobody has signed.
func (p *issuing) issue(w http.ResponseWriter, r *http.Request) bool {
	if r.URL.Path != tokenPath || r.Method != http.MethodPost {
		return false
	}
	var request struct {
		APIVersion, Kind string
		Spec             struct {
			Audiences         []string
			ExpirationSeconds int
		}
	}
	err := json.NewDecoder(r.Body).Decode(&request)
	p.api.Lock()
	defer p.api.Unlock()
	switch {
	case err != nil || request.APIVersion != "authentication.k8s.io/v1" || request.Kind != "TokenRequest" || request.Spec.ExpirationSeconds < 600:
		fakekube.Fail(w, http.StatusBadRequest, "BadRequest")
		return true
	case p.code != 0:
		fakekube.Fail(w, p.code, p.reason)
		return true
	}
	seconds, now := cmp.Or(p.life, request.Spec.ExpirationSeconds), time.Now().Unix()
	claims, _ := json.Marshal(map[string]any{"sub": "system:serviceaccount:istio-system:reader", "aud": request.Spec.Audiences, "iat": now, "exp": now + int64(seconds)})
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"spec":{"expirationSeconds":%d},"status":{"token":"e30.%s."}}`, seconds, base64.RawURLEncoding.EncodeToString(claims))
	return true
}

// TestAClusterGivesTheToken_C19: for the account and the audience of the config, and another one at 80 % of its life.
func TestAClusterGivesTheToken_C19(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newIssuing(t)
		began := time.Now()
		p.api.Set(func() { p.api.Token = "of the relay" })
		p.run()
		st, first := p.after(time.Second), p.last()
		if st.State != upstreams.StateSynced || st.Kept != "" || first.Subject != "system:serviceaccount:istio-system:reader" || !slices.Equal(first.Audiences, []string{"istio-ca"}) ||
			first.Expires != float64(began.Add(time.Hour).Unix()) {
			t.Fatalf("%s, %q, %+v", st.State, st.Kept, first)
		}
		at := time.Duration(0) // since the beginning
		for n, life := range []time.Duration{time.Hour, time.Hour, 20 * time.Minute, 20 * time.Minute} {
			if n == 1 { // from the third on
				p.api.Set(func() { p.life = 1200 })
			}
			at += life * 4 / 5
			await.Settle(time.Until(began.Add(at)) - time.Second)
			if p.asked() != n+1 {
				t.Fatalf("before 80 %% of %s there were %d requests, want %d", life, p.asked(), n+1)
			}
			await.Settle(2 * time.Second)
			if p.asked() != n+2 {
				t.Fatalf("after 80 %% of %s there were %d requests, want %d", life, p.asked(), n+2)
			}
			if got := p.again().IssuedAt; got != float64(began.Add(at).Unix()) {
				t.Fatalf("the new stream has a token of %v", jwt.Time(got).Sub(began))
			}
		}
	})
}

// TestATokenStaysWhileItsRenewalFails_C19: the status tells who gives none, and what to do.
func TestATokenStaysWhileItsRenewalFails_C19(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newIssuing(t)
		began := time.Now()
		p.run()
		p.after(time.Second)
		p.refuse(http.StatusForbidden, "Forbidden")
		if st := p.after(47 * time.Minute); st.Kept != "" {
			t.Errorf("before the renewal: %q", st.Kept)
		}
		st := p.after(2 * time.Minute)
		for _, want := range []string{"no new token from the cluster of " + p.kube, "the right to create serviceaccounts/token", "used until " + began.Add(time.Hour).UTC().Format(time.RFC3339)} {
			if !strings.Contains(st.Kept, want) {
				t.Errorf("%q lacks %q", st.Kept, want)
			}
		}
		if c := p.again(); c.IssuedAt != float64(began.Unix()) || p.m.Status()[0].State != upstreams.StateSynced {
			t.Errorf("the token of before: %+v, %s", c, p.m.Status()[0].State)
		}
		if n := p.asked(); n > 20 {
			t.Errorf("%d requests in two minutes", n)
		}
		// After its end, the server decides about it.
		p.after(15 * time.Minute)
		if st := p.m.Status()[0]; !strings.Contains(st.Kept, "no new token") || strings.Contains(st.Kept, "used until") {
			t.Errorf("after the end of the token: %q", st.Kept)
		}
		p.refuse(0, "")
		if st := p.after(20 * time.Second); st.Kept != "" {
			t.Errorf("with the right: %q", st.Kept)
		}
		if c := p.again(); c.IssuedAt <= float64(began.Add(time.Hour).Unix()) {
			t.Errorf("the token is still that of before: %+v", c)
		}
	})
}

// TestTheFirstTokenMayComeLate_C19: the stream is opened as soon as there is one.
func TestTheFirstTokenMayComeLate_C19(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newIssuing(t)
		p.refuse(http.StatusNotFound, "NotFound")
		p.run()
		st := p.after(time.Hour)
		if st.State == upstreams.StateSynced || !strings.Contains(st.Kept, "create the service account reader") || !strings.Contains(st.LastError, "no new token") {
			t.Errorf("without a token: %s, %q, %q", st.State, st.Kept, st.LastError)
		}
		p.refuse(0, "")
		if st := p.after(20 * time.Second); st.State != upstreams.StateSynced || st.Kept != "" {
			t.Errorf("with a token: %s, %q, %q", st.State, st.Kept, st.LastError)
		}
	})
}

// TestATokenThatIsDeniedIsReplaced_C19: who makes an account anew ends its tokens. A new token that is denied, too, is no
// reason to ask again and again.
func TestATokenThatIsDeniedIsReplaced_C19(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newIssuing(t)
		began := time.Now()
		p.run()
		p.after(20 * time.Minute)
		p.mu.Lock()
		p.refuses = strings.TrimPrefix(p.tokens[0], "Bearer ")
		p.mu.Unlock()
		if c := p.again(); c.IssuedAt < float64(began.Add(20*time.Minute).Unix()) || p.asked() != 2 || p.after(time.Minute).State != upstreams.StateSynced {
			t.Errorf("after %d requests the token is %+v: %+v", p.asked(), c, p.m.Status()[0])
		}
		p.mu.Lock()
		p.refuses = strings.TrimPrefix(p.tokens[len(p.tokens)-1], "Bearer ")
		p.mu.Unlock()
		p.again()
		if p.asked() != 2 {
			t.Errorf("a new token was replaced: %d requests", p.asked())
		}
		p.mu.Lock()
		p.less = true
		p.mu.Unlock()
		p.after(20 * time.Minute)
		if p.again(); p.asked() != 2 {
			t.Errorf("an account without rights got %d tokens", p.asked())
		}
	})
}

// TestBothStreamsShareTheToken_C19: the one of the endpoints asks for none of its own.
func TestBothStreamsShareTheToken_C19(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newIssuing(t)
		var source *Source
		tune := p.tune
		p.tune = func(s *Source) {
			source = s
			tune(s)
		}
		p.run(func(u *config.Upstream) { u.Services.Mode = config.ServicesDiscover })
		p.after(time.Second)
		before := p.streams()
		if err := source.endpoints.want(map[string]struct{}{"outbound|80||a.shop.svc.cluster.local": {}}); err != nil {
			t.Fatal(err)
		}
		p.after(10 * time.Second)
		if p.streams() == before {
			t.Fatal("there is no stream for endpoints")
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.asked() != 1 || len(slices.Compact(slices.Clone(p.tokens))) != 1 {
			t.Errorf("%d requests, %d streams with the tokens %q", p.asked(), len(p.tokens), p.tokens)
		}
	})
}

// TestAnAnswerWithoutATokenIsRefused_C19: an answer is bounded, and has what can be a token.
func TestAnAnswerWithoutATokenIsRefused_C19(t *testing.T) {
	for name, tc := range map[string]struct {
		code         int
		answer, want string
	}{
		"empty":        {201, `{"status":{}}`, "the answer has no token"},
		"long":         {201, `{"status":{"token":"` + strings.Repeat("t", 64<<10+1) + `"}}`, "the answer has no token"},
		"a line":       {201, `{"status":{"token":"t\nx: y"}}`, "the answer has no token"},
		"endless":      {201, `{"status":{"token":"` + strings.Repeat("t", 5<<20) + `"}}`, "the answer"},
		"not JSON":     {200, `<html>`, "invalid character"},
		"unauthorized": {401, `{"kind":"Status","status":"Failure","code":401,"reason":"Unauthorized"}`, "renew the token or certificate in"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newIssuing(t)
				p.api.Set(func() {
					p.api.Fault = func(w http.ResponseWriter, _ *http.Request) bool {
						w.WriteHeader(tc.code)
						fmt.Fprint(w, tc.answer)
						return true
					}
				})
				i := newIssuer(p.upstream(), upstreams.Env{Node: node}, slog.New(slog.DiscardHandler))
				i.client.Dial = fakekube.Dial
				defer i.client.Close()
				if next := i.renew(t.Context()); next != tokenRetry {
					t.Errorf("the next request comes after %s", next)
				}
				if token, err := i.read(); err == nil || !strings.Contains(err.Error(), tc.want) || len(err.Error()) > 1000 {
					t.Errorf("%.20q, %v", token, err)
				}
			})
		})
	}
}

// TestALifeIsBounded_C19: neither a request a second, nor a token for ever.
func TestALifeIsBounded_C19(t *testing.T) {
	for seconds, want := range map[int]time.Duration{1: 48 * time.Second, -5: 48 * time.Second, 1200: 16 * time.Minute, 1 << 60: 24 * time.Hour * 4 / 5} {
		synctest.Test(t, func(t *testing.T) {
			p := newIssuing(t)
			p.api.Set(func() {
				p.api.Fault = func(w http.ResponseWriter, _ *http.Request) bool {
					fmt.Fprintf(w, `{"spec":{"expirationSeconds":%d},"status":{"token":"t"}}`, seconds)
					return true
				}
			})
			i := newIssuer(p.upstream(), upstreams.Env{Node: node}, slog.New(slog.DiscardHandler))
			i.client.Dial = fakekube.Dial
			defer i.client.Close()
			if next := i.renew(t.Context()); next != want {
				t.Errorf("with a life of %d s the next request comes after %s, want %s", seconds, next, want)
			}
		})
	}
}

// TestDoctorAsksForAToken: it tells what the token is for, or why there is none.
func TestDoctorAsksForAToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newIssuing(t)
		examine := func() string {
			u := p.upstream()
			one := p.prober(u)
			one.issuer = newIssuer(u, one.env, slog.New(slog.DiscardHandler))
			one.issuer.client.Dial = fakekube.Dial
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			var all []string
			for _, f := range one.run(ctx) {
				all = append(all, fmt.Sprint(f.Level, " ", f.Check, ": ", f.What, " ", f.Why, " ", f.Fix))
			}
			return strings.Join(all, "\n")
		}
		if got := examine(); !strings.Contains(got, "token of system:serviceaccount:istio-system:reader for istio-ca, until") {
			t.Error(got)
		}
		p.refuse(http.StatusForbidden, "Forbidden")
		if got := examine(); !strings.Contains(got, "the token can not be read") || !strings.Contains(got, "serviceaccounts/token") {
			t.Error(got)
		}
		if checks := probe(p.upstream(), upstreams.Env{Node: node}); len(checks) != 1 {
			t.Errorf("%d checks", len(checks))
		}
	})
}

// TestTheLifeOfAClusterCredentialIsTold: without it there are no new tokens.
func TestTheLifeOfAClusterCredentialIsTold(t *testing.T) {
	p := &issuing{kube: filepath.Join(t.TempDir(), "kubeconfig")}
	end := time.Now().Add(time.Hour).Truncate(time.Second)
	claims := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"exp":%d}`, end.Unix()))
	fakekube.WriteKubeconfig(t, p.kube, fakekube.New().Start(t), "e30."+claims+".")
	if _, token, err := lives(p.upstream()); err != nil || !token.Ends.Equal(end) {
		t.Errorf("%v, %v", token, err)
	}
}
