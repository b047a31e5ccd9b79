package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

// files returns the files of an archive.
func files(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		all[h.Name] = string(b)
	}
}

// withSecrets are texts with one secret each. Each secret contains the word canary, plain or in base64.
var withSecrets = []string{
	"token eyJhbGciOiJSUzI1NiJ9.eyJjYW5hcnkiOjF9.canary-signature_x",
	"Authorization: Bearer canary0123456789",
	"authorization=Basic Y2FuYXJ5OmNhbmFyeQ== canaryfree"[:43],
	"-----BEGIN EC PRIVATE KEY-----\ncanary\ncanary\n-----END EC PRIVATE KEY-----",
	"-----BEGIN PRIVATE KEY-----\ncanary",
	`dial https://root:canary@istiod.example:15012/x`,
	`server: https://canary@10.0.0.1`,
	"https://hooks.slack.com/services/T000/B000/canary",
	`url: "https://example.com/hook?key=canary"`,
	"https://example.com?canary=1",
	`client-key-data: canaryCANARY+/=`,
	`"client-certificate-data": "canary"`,
	`password=canary`, `{"password":"canary"}`, `db_password: canary`, `"{\"token\":\"canary\"}"`, "access_token=canary&x=1", "api-key: canary",
	"redis://user:canary@host/0",
	"AWS_SECRET_ACCESS_KEY=canary", "MY_DB_PASSWORD: canary", "CI_JOB_TOKEN_V2=canary", "X-Vault-Token: canary", "privateKey: canary", "client_key: canary",
	`password: "a canary with spaces"`, `password='a canary'`, `{"password":"it\"s a canary"}`, `msg="{\"password\":\"a canary\"}"`,
	"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,0\n\ncanary\n-----END RSA PRIVATE KEY-----",
	"https://hooks.example/a,canary", "https://hooks.example/a;canary", "https://hooks.example/(a)canary", "tls.key: LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0tcanary",
	"Cookie: session=canary", "authorization: Token canary", "--client-secret canary",
	"\u017fecret: canary", "to\u212aen=canary", "AKIACANARYCANARY0123", "ghs_canarycanarycanary01", "xoxb-canary-canary",
}

func TestSecretsAreTakenOut(t *testing.T) {
	for _, text := range withSecrets {
		if got := string(Redact([]byte(text))); strings.Contains(strings.ToLower(got), "canary") || strings.Contains(got, "Y2FuYXJ5") {
			t.Errorf("%q became %q", text, got)
		}
	}
}

// TestSignsMissNoShape: text without the signs of a shape does not match that shape.
func TestSignsMissNoShape(t *testing.T) {
	for _, text := range withSecrets {
		for _, text := range []string{text, strings.ToUpper(text), strings.ToLower(text)} {
			want := []byte(text)
			for _, s := range secrets {
				want = s.shape.ReplaceAll(want, []byte(s.by))
			}
			if got := Redact([]byte(text)); !bytes.Equal(got, want) {
				t.Errorf("%q became %q, and %q if all shapes are looked for", text, got, want)
			}
		}
	}
}

func TestTextsWithoutSecretsStay(t *testing.T) {
	for _, text := range []string{
		"tokenFile: /var/run/secrets/tokens/istio-token",
		"type.googleapis.com/envoy.service.discovery.v3.Resource",
		`level=INFO msg="reading the config file" cause=SIGHUP`,
		"https://10.0.0.1:6443", "xds://127.0.0.1:15010",
		"relay_upstream_state{upstream=\"east\"} 1",
		"networking.istio.io/ServiceEntry shop/db",
		"caFile: /etc/relay/root-cert.pem", "serverName: istiod.istio-system.svc", "secretName: cacerts", `err="the token of east has expired"`,
		"relay_listener_certificate_expiry_seconds 1.7e+09", "keyFile: /etc/relay/key.pem", "secrets: {namespace: istio-system}", "secrets:\n  namespace: istio-system",
	} {
		if got := string(Redact([]byte(text))); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestJSONStaysJSON(t *testing.T) {
	for _, text := range []string{
		`{"password":"a \"b\" c","next":["https://x.example/a,b"],"token":true,"note":"see https://x.example/a"}`,
		`{"text":"{\"secret\":\"a b\",\"url\":\"https://x.example/a\"}","cookie":{"regex":"a"}}`,
	} {
		if got := Redact([]byte(text)); !json.Valid(bytes.ReplaceAll(got, []byte(`:[hidden]`), []byte(`:0`))) || bytes.Contains(got, []byte("a b")) {
			t.Errorf("%s became %s", text, got)
		}
	}
}

func TestABundleIsBoundedAndTellsWhatItHas(t *testing.T) {
	var out bytes.Buffer
	b := New(&out, "bundle", time.Unix(0, 0))
	if b.left != MaxAll {
		t.Errorf("it has room for %d bytes", b.left)
	}
	b.left = maxFile + 1<<20 // so that the test is short
	b.Text("a.txt", "the first", func(w io.Writer) error { _, err := io.WriteString(w, "password=canary"); return err })
	b.Text("failed.txt", "the second", func(io.Writer) error { return errors.New("password=canary is wrong") })
	for range 3 {
		b.Binary("large", "the third", func(w io.Writer) error {
			_, err := w.Write(make([]byte, maxFile+1<<20))
			return err
		})
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	all := files(t, out.Bytes())
	manifest := all["bundle/MANIFEST.txt"]
	if all["bundle/a.txt"] != "password=[hidden]" || len(all["bundle/large"]) > maxFile || strings.Contains(manifest, "canary") {
		t.Errorf("%q %d %s", all["bundle/a.txt"], len(all["bundle/large"]), manifest)
	}
	for _, want := range []string{"a.txt", "the first", "failed.txt", "password=[hidden] is wrong", "cut at the size limit, 1048576 of its 9437184 bytes are left out"} {
		if !strings.Contains(manifest, want) {
			t.Errorf("no %q in %s", want, manifest)
		}
	}
	if b.left != 0 {
		t.Errorf("%d bytes are left of all", b.left)
	}
}

// TestTextThatGrowsAsItIsRedactedKeepsTheBounds: [hidden] is longer than a short secret.
func TestTextThatGrowsAsItIsRedactedKeepsTheBounds(t *testing.T) {
	var out bytes.Buffer
	b := New(&out, "bundle", time.Unix(0, 0))
	b.left = 100
	secrets := func(w io.Writer) error { _, err := io.WriteString(w, strings.Repeat("token=a\n", 12)); return err }
	b.Text("first.txt", "the first", secrets)
	b.Text("second.txt", "the second", secrets)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	// Only whole lines are kept.
	if first := files(t, out.Bytes())["bundle/first.txt"]; first != strings.Repeat("token=[hidden]\n", 6) || b.left != 0 {
		t.Errorf("%q of a file, %d left of all", first, b.left)
	}
}
