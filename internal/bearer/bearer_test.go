package bearer

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	jose "github.com/go-jose/go-jose/v4"
	"go.uber.org/goleak"

	"meshrelay/internal/testing/await"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const issuerURL = "https://issuer.example"

var (
	rsaKey  = must(rsa.GenerateKey(rand.Reader, 2048))
	ecKey   = must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	edKey   = ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	strange = must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	now     = time.Unix(1_900_000_000, 0)
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func jwks(keys ...jose.JSONWebKey) []byte {
	return must(json.Marshal(jose.JSONWebKeySet{Keys: keys}))
}

func ours() []byte {
	return jwks(jose.JSONWebKey{Key: rsaKey.Public(), KeyID: "rsa", Algorithm: "RS256"}, jose.JSONWebKey{Key: ecKey.Public(), KeyID: "ec"}, jose.JSONWebKey{Key: edKey.Public(), KeyID: "ed"})
}

type m = map[string]any

// claimsWith returns good claims with changes; a nil removes a claim.
func claimsWith(changes m) m {
	all := m{"iss": issuerURL, "sub": "alice", "aud": "relay", "exp": now.Add(time.Hour).Unix(), "groups": []string{"admins"}}
	maps.Copy(all, changes)
	maps.DeleteFunc(all, func(_ string, v any) bool { return v == nil })
	return all
}

func sign(alg jose.SignatureAlgorithm, key any, kid string, claims m) string {
	options := (&jose.SignerOptions{}).WithType("JWT")
	if kid != "" {
		options.WithHeader("kid", kid)
	}
	signer := must(jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, options))
	return must(must(signer.Sign(must(json.Marshal(claims)))).CompactSerialize())
}

// unsigned returns a JWT with a header as it is, and a signature.
func unsigned(header string, claims m, signature string) string {
	enc := base64.RawURLEncoding.EncodeToString
	return enc([]byte(header)) + "." + enc(must(json.Marshal(claims))) + "." + enc([]byte(signature))
}

func open(t testing.TB, change func(*Issuer)) *Issuers {
	t.Helper()
	file := filepath.Join(t.TempDir(), "jwks")
	if err := os.WriteFile(file, ours(), 0o600); err != nil {
		t.Fatal(err)
	}
	i := Issuer{Name: "corp", Issuer: issuerURL, Audiences: []string{"relay", "other-relay"}, JWKSFile: file, GroupsClaim: "groups"}
	if change != nil {
		change(&i)
	}
	return must(Open([]Issuer{i}))
}

func TestATokenProvesItsSubjectAndGroups(t *testing.T) {
	is := open(t, func(i *Issuer) { i.TrustDomain = "east.example" })
	const account = "system:serviceaccount:istio-system:relay"
	for name, tc := range map[string]struct {
		raw  string
		want string
	}{
		"RS256":             {sign(jose.RS256, rsaKey, "rsa", claimsWith(nil)), "jwt:corp/alice group:corp/admins"},
		"ES256":             {sign(jose.ES256, ecKey, "ec", claimsWith(m{"groups": nil})), "jwt:corp/alice"},
		"EdDSA":             {sign(jose.EdDSA, edKey, "ed", claimsWith(nil)), "jwt:corp/alice group:corp/admins"},
		"without a kid":     {sign(jose.ES256, ecKey, "", claimsWith(nil)), "jwt:corp/alice group:corp/admins"},
		"another audience":  {sign(jose.ES256, ecKey, "ec", claimsWith(m{"aud": []string{"x", "other-relay"}})), "jwt:corp/alice group:corp/admins"},
		"a clock ahead":     {sign(jose.ES256, ecKey, "ec", claimsWith(m{"nbf": now.Add(20 * time.Second).Unix()})), "jwt:corp/alice group:corp/admins"},
		"a service account": {sign(jose.ES256, ecKey, "ec", claimsWith(m{"sub": account, "groups": nil})), "spiffe://east.example/ns/istio-system/sa/relay jwt:corp/" + account},
		"the claim of Kubernetes": {sign(jose.ES256, ecKey, "ec", claimsWith(m{"groups": nil, "kubernetes.io": m{"namespace": "a", "serviceaccount": m{"name": "b"}}})),
			"spiffe://east.example/ns/a/sa/b jwt:corp/alice"},
	} {
		proof, err := is.Identify(t.Context(), tc.raw, now, 0)
		if got := strings.Join(proof.Names, " "); err != nil || got != tc.want || proof.Reviewed || proof.Issuer != "corp" || !proof.Expires.Equal(now.Add(time.Hour)) {
			t.Errorf("%s: %q %v, expires %v", name, got, err, proof.Expires)
		}
	}
}

// TestAForgedTokenIsRefused: with what was presented and what was wanted, and without the token.
func TestAForgedTokenIsRefused(t *testing.T) {
	is := open(t, func(i *Issuer) { i.TrustDomain = "east.example" })
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: must(x509.MarshalPKIXPublicKey(rsaKey.Public()))})
	many := make([]string, maxGroups+1)
	for i := range many {
		many[i] = fmt.Sprint("g", i)
	}
	ec := func(changes m) string { return sign(jose.ES256, ecKey, "ec", claimsWith(changes)) }
	good := ec(nil)
	parts := strings.Split(good, ".")
	for name, tc := range map[string]struct{ raw, want string }{
		"alg none":                        {unsigned(`{"alg":"none"}`, claimsWith(nil), ""), "unexpected signature algorithm"},
		"alg None":                        {unsigned(`{"alg":"None"}`, claimsWith(nil), ""), "unexpected signature algorithm"},
		"no alg":                          {unsigned(`{}`, claimsWith(nil), "x"), "unexpected signature algorithm"},
		"HS256 with the public key":       {sign(jose.HS256, public, "rsa", claimsWith(nil)), "unexpected signature algorithm"},
		"HS256 with the DER of the key":   {sign(jose.HS256, must(x509.MarshalPKIXPublicKey(rsaKey.Public())), "rsa", claimsWith(nil)), "unexpected signature algorithm"},
		"another key":                     {sign(jose.ES256, strange, "ec", claimsWith(nil)), "has not signed it"},
		"another key, in the header":      {embedded(), "has not signed it"},
		"the kid of another key":          {sign(jose.ES256, ecKey, "rsa", claimsWith(nil)), "has not signed it"},
		"another algorithm than the key":  {sign(jose.PS256, rsaKey, "rsa", claimsWith(nil)), "has not signed it"},
		"an unknown kid":                  {sign(jose.ES256, ecKey, "../../ec", claimsWith(nil)), "no key with the kid"},
		"a critical header":               {unsigned(`{"alg":"ES256","kid":"ec","crit":["x"],"x":1}`, claimsWith(nil), "x"), "has not signed it"},
		"changed claims":                  {parts[0] + "." + strings.Split(ec(m{"sub": "root"}), ".")[1] + "." + parts[2], "has not signed it"},
		"no signature":                    {parts[0] + "." + parts[1] + ".", "has not signed it"},
		"the JSON form":                   {`{"payload":"` + parts[1] + `","protected":"` + parts[0] + `","signature":"` + parts[2] + `"}`, "no API server reviews it"},
		"a foreign audience":              {ec(m{"aud": "istio-ca"}), "it is for another audience"},
		"no audience":                     {ec(m{"aud": nil}), "it is for another audience"},
		"another issuer":                  {ec(m{"iss": "https://evil.example"}), "its issuer is not known"},
		"the issuer with a slash":         {ec(m{"iss": issuerURL + "/"}), "its issuer is not known"},
		"expired":                         {ec(m{"exp": now.Add(-time.Second).Unix()}), "it has expired"},
		"no expiry":                       {ec(m{"exp": nil}), "it has no expiry"},
		"an expiry that is no number":     {ec(m{"exp": "never"}), "no API server reviews it"},
		"an expiry beyond time":           {ec(m{"exp": 1e300}), "it has"},
		"not yet valid":                   {ec(m{"nbf": now.Add(time.Minute).Unix()}), "it is not valid yet"},
		"no subject":                      {ec(m{"sub": nil}), "its subject is empty"},
		"a subject with a line break":     {ec(m{"sub": "a\nb"}), "characters that are not printed"},
		"a long subject":                  {ec(m{"sub": strings.Repeat("a", 256)}), "more than 255 bytes"},
		"too many groups":                 {ec(m{"groups": many}), "at most 100"},
		"a long group":                    {ec(m{"groups": []string{strings.Repeat("g", 257)}}), "more than 256 bytes"},
		"groups that are no list":         {ec(m{"groups": "admins"}), `its claim "groups" is not a list`},
		"a service account that leads up": {ec(m{"sub": "system:serviceaccount:..:x"}), "has no SPIFFE ID"},
		"a service account with slashes":  {ec(m{"sub": "system:serviceaccount:a/sa/b:x"}), "has no SPIFFE ID"},
		"too large":                       {ec(m{"x": strings.Repeat("a", maxToken)}), "more than 16 KiB"},
		"two parts":                       {"a.b", "no API server reviews it"},
		"empty":                           {"", "no API server reviews it"},
	} {
		proof, err := is.Identify(t.Context(), tc.raw, now, 0)
		var refused *Error
		if !errors.As(err, &refused) || refused.Unavailable || !strings.Contains(err.Error(), tc.want) || !proof.IsZero() {
			t.Errorf("%s: %v %v, want %s", name, proof, err, tc.want)
			continue
		}
		if !strings.Contains(err.Error(), `want a JWT of issuer "https://issuer.example" for audience "relay", "other-relay"`) {
			t.Errorf("%s: %v does not tell what was wanted", name, err)
		}
		for _, part := range strings.Split(tc.raw, ".") {
			if len(part) > 20 && strings.Contains(err.Error(), part) {
				t.Errorf("%s: the error quotes the token: %v", name, err)
			}
		}
	}
	if _, err := is.Identify(t.Context(), ec(m{"aud": "istio-ca", "exp": 1_900_000_060}), now, 0); !strings.Contains(err.Error(),
		`a JWT of issuer "https://issuer.example" for audience "istio-ca", that expires at 2030-03-17T17:47:40Z`) {
		t.Errorf("%v does not tell what was presented", err)
	}
}

// embedded returns a token that brings its own key.
func embedded() string {
	signer := must(jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: strange, KeyID: "ec"}}, &jose.SignerOptions{EmbedJWK: true}))
	raw := must(must(signer.Sign(must(json.Marshal(claimsWith(nil))))).CompactSerialize())
	header := map[string]any{}
	parts := strings.Split(raw, ".")
	if err := json.Unmarshal(must(base64.RawURLEncoding.DecodeString(parts[0])), &header); err != nil {
		panic(err)
	}
	header["kid"] = "ec"
	input := base64.RawURLEncoding.EncodeToString(must(json.Marshal(header))) + "." + parts[1]
	h := crypto.SHA256.New()
	h.Write([]byte(input))
	r, s, err := ecdsa.Sign(rand.Reader, strange, h.Sum(nil))
	if err != nil {
		panic(err)
	}
	return input + "." + base64.RawURLEncoding.EncodeToString(append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...))
}

func TestKeySetsAreBounded(t *testing.T) {
	var ten []jose.JSONWebKey
	for range maxTries + 1 {
		ten = append(ten, jose.JSONWebKey{Key: ecKey.Public(), KeyID: "same"})
	}
	thousands := make([]jose.JSONWebKey, 10_000)
	for i := range thousands {
		thousands[i] = jose.JSONWebKey{Key: edKey.Public(), KeyID: fmt.Sprint(i)}
	}
	small := must(rsa.GenerateKey(rand.Reader, 1024))
	for name, tc := range map[string]struct {
		text []byte
		want string
	}{
		"10,000 keys":        {jwks(thousands...), "more than 128 keys"},
		"a secret":           {jwks(jose.JSONWebKey{Key: []byte("secret-secret-secret"), KeyID: "a"}), "secret or private key"},
		"a private key":      {jwks(jose.JSONWebKey{Key: ecKey, KeyID: "a"}), "secret or private key"},
		"a small RSA key":    {jwks(jose.JSONWebKey{Key: small.Public(), KeyID: "a"}), "1024 bits"},
		"no list":            {[]byte(`{"keys":{}}`), "no list keys"},
		"no keys":            {[]byte(`{}`), "no list keys"},
		"a key of no kind":   {[]byte(`{"keys":[1]}`), "keys[0] does not decode"},
		"not JSON":           {[]byte(`<html>`), "invalid character"},
		"an empty list":      {[]byte(`{"keys":[]}`), "no RSA, EC or Ed25519 key"},
		"only for secrets":   {jwks(jose.JSONWebKey{Key: ecKey.Public(), Use: "enc"}), "no RSA, EC or Ed25519 key"},
		"an unknown kind":    {[]byte(`{"keys":[{"kty":"OKP","crv":"X448","x":"AA"}]}`), "no RSA, EC or Ed25519 key"},
		"larger than 1 MiB":  {append(ours(), make([]byte, maxKeySet)...), "larger than 1024 KiB"},
		"as it is":           {ours(), ""},
		"and an unknown one": {[]byte(`{"keys":[{"kty":"OKP","crv":"X448","x":"AA"},` + string(ours())[9:]), ""},
	} {
		path := filepath.Join(t.TempDir(), "jwks")
		if err := os.WriteFile(path, tc.text, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := ReadKeys(path)
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), path)) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
	keys := must(parseKeys(jwks(ten...)))
	if _, err := keys.VerifySignature(t.Context(), sign(jose.ES256, ecKey, "same", nil)); err == nil || !strings.Contains(err.Error(), "more than 8 keys") {
		t.Errorf("keys of one kid: %v", err)
	}
}

// served is an issuer whose keys a URL serves.
type served struct {
	*httptest.Server
	body  atomic.Pointer[[]byte]
	fails atomic.Bool
	asked atomic.Int32
}

func serve(t *testing.T) (s *served, is *Issuers) {
	s = &served{}
	s.set(ours())
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked.Add(1)
		switch {
		case s.fails.Load():
			http.Redirect(w, r, "https://127.0.0.1:1/", http.StatusFound)
		default:
			_, _ = w.Write(*s.body.Load())
		}
	}))
	t.Cleanup(s.Close)
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return s, open(t, func(i *Issuer) { i.JWKSFile, i.JWKSURL, i.CAFile = "", s.URL, ca })
}

func (s *served) set(b []byte) { s.body.Store(&b) }

// TestKeysOfAURLAreKeptWhileItFails: and a token before the first answer is not called bad.
func TestKeysOfAURLAreKeptWhileItFails(t *testing.T) {
	s, is := serve(t)
	var problems []string
	refresh := func() bool {
		problems = nil
		return is.Refresh(t.Context(), func(of string, err error) { problems = append(problems, of+": "+err.Error()) })
	}
	raw := sign(jose.ES256, ecKey, "ec", claimsWith(nil))
	var refused *Error
	if _, err := is.Identify(t.Context(), raw, now, 0); !errors.As(err, &refused) || !refused.Unavailable {
		t.Errorf("before the first answer: %v", err)
	}
	if !refresh() || refresh() || len(problems) > 0 {
		t.Errorf("the keys change with the first answer only; problems %v", problems)
	}
	accepted := func(want bool) {
		t.Helper()
		if _, err := is.Identify(t.Context(), raw, now, 0); (err == nil) != want {
			t.Errorf("the token is accepted: %v", err)
		}
	}
	accepted(true)
	for name, spoil := range map[string]func(){
		"a redirect": func() { s.fails.Store(true) },
		"HTML":       func() { s.set([]byte("<html>")) },
		"too large":  func() { s.set(make([]byte, maxKeySet+1)) },
	} {
		spoil()
		if refresh() || len(problems) != 1 || !strings.HasPrefix(problems[0], "corp: https://") {
			t.Errorf("%s: problems %v", name, problems)
		}
		accepted(true)
		s.fails.Store(false)
	}
	s.set(jwks(jose.JSONWebKey{Key: rsaKey.Public(), KeyID: "rsa"}))
	if !refresh() {
		t.Error("the keys have changed")
	}
	accepted(false)
	s.set([]byte(`{"keys":[]}`))
	if !refresh() || len(problems) > 0 {
		t.Errorf("an issuer may take back all keys; problems %v", problems)
	}
}

// TestAFileMayTakeBackAllKeys: an issuer is trusted no more, though its file is not missing or broken.
func TestAFileMayTakeBackAllKeys(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jwks")
	write := func(text []byte) {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(ours())
	is := open(t, func(i *Issuer) { i.JWKSFile = path })
	raw := sign(jose.ES256, ecKey, "ec", claimsWith(nil))
	if _, err := is.Identify(t.Context(), raw, now, 0); err != nil {
		t.Fatal(err)
	}
	write([]byte(`{"keys":[]}`))
	if !is.Refresh(t.Context(), func(what string, err error) { t.Errorf("%s: %v", what, err) }) {
		t.Error("the keys have changed")
	}
	if _, err := is.Identify(t.Context(), raw, now, 0); err == nil {
		t.Error("the token of an issuer without keys is accepted")
	}
}

// TestGroupsAreInOneOrder: a server may list them in another one at each review.
func TestGroupsAreInOneOrder(t *testing.T) {
	f := &fakeReviewer{}
	is := openReviewed(t, f)
	var proven [][]string
	for _, groups := range [][]string{{"a", "b"}, {"b", "a"}} {
		f.answer = func(string) (Review, error) {
			return Review{Authenticated: true, User: "u", Audiences: []string{"relay"}, Groups: groups}, nil
		}
		proof, err := is.Identify(t.Context(), "opaque", now, time.Nanosecond)
		if err != nil {
			t.Fatal(err)
		}
		proven = append(proven, proof.Names)
	}
	if !slices.Equal(proven[0], proven[1]) {
		t.Errorf("the same groups prove %q", proven)
	}
}

// TestUnknownKeysDoNotDriveRequests: the URL is asked once in five seconds, however many tokens name keys that are
// not there; a key that has just come is found.
func TestUnknownKeysDoNotDriveRequests(t *testing.T) {
	s, is := serve(t)
	is.Refresh(t.Context(), func(_ string, err error) { t.Error(err) })
	fresh := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	s.set(jwks(jose.JSONWebKey{Key: fresh.Public(), KeyID: "fresh"}))
	is.all[0].source.remote.asked = time.Now().Add(-time.Hour)
	if _, err := is.Identify(t.Context(), sign(jose.ES256, fresh, "fresh", claimsWith(nil)), now, 0); err != nil {
		t.Errorf("a fresh key: %v", err)
	}
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			if _, err := is.Identify(t.Context(), sign(jose.ES256, strange, fmt.Sprint("made-up-", i), claimsWith(nil)), now, 0); err == nil {
				t.Error("a made-up key is accepted")
			}
		})
	}
	all.Wait()
	if got := s.asked.Load(); got != 2 {
		t.Errorf("the URL was asked %d times, want 2", got)
	}
	if !is.Refresh(t.Context(), func(_ string, err error) { t.Error(err) }) {
		t.Error("the keys that a token has brought are news for open streams")
	}
}

// fakeReviewer is an API server that answers as a function does.
type fakeReviewer struct {
	answer func(token string) (Review, error)
	asked  atomic.Int32
}

func (f *fakeReviewer) Review(ctx context.Context, token string, _ []string) (Review, error) {
	f.asked.Add(1)
	if ctx.Err() != nil {
		return Review{}, ctx.Err()
	}
	return f.answer(token)
}
func (*fakeReviewer) Refresh(context.Context) error { return nil }
func (*fakeReviewer) Close()                        {}

func accept(string) (Review, error) {
	return Review{Authenticated: true, User: "system:serviceaccount:a:b", Groups: []string{"system:serviceaccounts"}, Audiences: []string{"relay"}}, nil
}

func openReviewed(t *testing.T, f *fakeReviewer) *Issuers {
	t.Helper()
	return must(Open([]Issuer{
		{Name: "east", Reviewer: f, Audiences: []string{"relay"}, TrustDomain: "east.example"},
		open(t, nil).all[0].Issuer,
	}))
}

// TestOtherTokensAreReviewed: opaque ones and those of unknown issuers, but none of a known issuer, and none that has
// expired.
func TestOtherTokensAreReviewed(t *testing.T) {
	f := &fakeReviewer{answer: accept}
	is := openReviewed(t, f)
	const names = "spiffe://east.example/ns/a/sa/b jwt:east/system:serviceaccount:a:b group:east/system:serviceaccounts"
	foreign := sign(jose.ES256, strange, "x", claimsWith(m{"iss": "kubernetes"}))
	for name, raw := range map[string]string{"opaque": "opaque", "a JWT of another issuer": foreign} {
		proof, err := is.Identify(t.Context(), raw, now, 0)
		if err != nil || strings.Join(proof.Names, " ") != names || !proof.Reviewed || proof.Expires.IsZero() != (raw == "opaque") {
			t.Errorf("%s: %+v %v", name, proof, err)
		}
	}
	asked := f.asked.Load()
	for name, raw := range map[string]string{
		"a known issuer": sign(jose.ES256, strange, "ec", claimsWith(nil)),
		"expired":        sign(jose.ES256, strange, "ec", claimsWith(m{"iss": "kubernetes", "exp": now.Unix() - 1})),
	} {
		if _, err := is.Identify(t.Context(), raw, now, 0); err == nil || f.asked.Load() != asked {
			t.Errorf("%s: %v, reviews %d", name, err, f.asked.Load())
		}
	}
	for name, tc := range map[string]struct {
		answer func(string) (Review, error)
		code   bool
		want   string
	}{
		"not authenticated": {func(string) (Review, error) { return Review{}, nil }, false, "does not accept it;"},
		"no audiences":      {func(string) (Review, error) { return Review{Authenticated: true, User: "a"}, nil }, false, "for these audiences"},
		"other audiences": {func(string) (Review, error) {
			return Review{Authenticated: true, User: "a", Audiences: []string{"x"}}, nil
		}, false, "for these audiences"},
		"no user": {func(string) (Review, error) { return Review{Authenticated: true, Audiences: []string{"relay"}}, nil }, false, "its subject is empty"},
		"many groups": {func(string) (Review, error) {
			return Review{Authenticated: true, User: "a", Audiences: []string{"relay"}, Groups: slices.Repeat([]string{"g"}, 101)}, nil
		}, false, "at most 100"},
		"no answer": {func(string) (Review, error) { return Review{}, errors.New("connection refused") }, true, "can not review it: connection refused"},
	} {
		f.answer = tc.answer
		_, err := is.Identify(t.Context(), name, now, 0)
		var refused *Error
		if !errors.As(err, &refused) || refused.Unavailable != tc.code || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestReviewsAreKeptForTenSeconds: errors are not kept, and the table is bounded.
func TestReviewsAreKeptForTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeReviewer{answer: accept}
		r := newReviews(Issuer{Reviewer: f})
		of := func(maxAge time.Duration, asks int32) {
			t.Helper()
			before := f.asked.Load()
			_, err := r.of(t.Context(), "a", maxAge)
			if got := f.asked.Load() - before; err != nil || got != asks {
				t.Errorf("%d requests, want %d: %v", got, asks, err)
			}
		}
		of(reviewAge, 1)
		await.Pass(reviewAge - time.Millisecond)
		of(reviewAge, 0)
		of(5*time.Second, 1)
		await.Pass(reviewAge)
		of(reviewAge, 1)
		f.answer = func(string) (Review, error) { return Review{}, errors.New("down") }
		for range 3 {
			if _, err := r.of(t.Context(), "b", reviewAge); err == nil {
				t.Error("an error is kept as a review")
			}
		}
		f.answer = accept
		if _, err := r.of(t.Context(), "b", reviewAge); err != nil {
			t.Errorf("after an error: %v", err)
		}
		for i := range 3 * maxReviews {
			if _, err := r.of(t.Context(), fmt.Sprint(i), reviewAge); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(r.kept.Keys()); n > maxReviews {
			t.Errorf("%d reviews are kept", n)
		}
	})
}

// TestReviewsAtTheSameTimeAreBounded: one for all who wait for the same token, and at most sixteen; others are told
// that there are too many.
func TestReviewsAtTheSameTimeAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open, most atomic.Int32
		f := &fakeReviewer{answer: func(string) (Review, error) {
			most.Store(max(most.Load(), open.Add(1)))
			defer open.Add(-1)
			await.Pass(2 * time.Second)
			return Review{}, nil
		}}
		r := newReviews(Issuer{Reviewer: f})
		var all sync.WaitGroup
		var failed atomic.Int32
		for i := range 200 {
			all.Go(func() {
				if _, err := r.of(t.Context(), fmt.Sprint(i%100), reviewAge); err != nil {
					failed.Add(1)
				}
			})
		}
		all.Wait()
		if most.Load() != maxReviewing || f.asked.Load() > 100 || failed.Load() == 0 {
			t.Errorf("%d at once, %d in all, %d failed", most.Load(), f.asked.Load(), failed.Load())
		}
	})
}

// FuzzIdentify: nothing but a token that the issuer has signed proves anything, and no error quotes the token.
func FuzzIdentify(f *testing.F) {
	is := open(f, nil)
	good := sign(jose.ES256, ecKey, "ec", claimsWith(nil))
	for _, s := range []string{good, unsigned(`{"alg":"none"}`, claimsWith(nil), ""), "a.b.c", "", "..", good + "A", `{"payload":""}`} {
		f.Add(s)
	}
	want := must(is.Identify(context.Background(), good, now, 0)).Names
	f.Fuzz(func(t *testing.T, raw string) {
		proof, err := is.Identify(t.Context(), raw, now, 0)
		if err == nil && !slices.Equal(proof.Names, want) {
			t.Errorf("%q proves %v", raw, proof.Names)
		}
		if err != nil && len(raw) > 40 && strings.Contains(err.Error(), raw) {
			t.Errorf("the error quotes the token: %v", err)
		}
	})
}
