package config_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"meshrelay/config"
)

// issue writes a certificate and its key, and returns the certificate in DER form.
func issue(t *testing.T, certFile, keyFile string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, certFile, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	write(t, keyFile, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	return der
}

// securedFiles is a config with every field that names a file of TLS.
const securedFiles = `upstreams:
- name: east
  xds:
    addresses: ["istiod.east:15012"]
    tls:
      caFile: ca.pem
      certFile: own.pem
      keyFile: own.key
downstream:
  listeners:
  - address: "127.0.0.1:15012"
    tls:
      certFile: own.pem
      keyFile: own.key
      clientCAs:
      - trustDomain: a.example
        file: ca.pem
    allowAnyIdentity: true
`

func TestFilesOfTLSAreReadByCheck_AndNamedWithLineFieldAndCure(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	path := in("relay.yaml")
	write(t, path, securedFiles)
	der := issue(t, in("ca.pem"), in("ca.key"))
	issue(t, in("own.pem"), in("own.key"))
	if _, err := config.Check(path, sources()...); err != nil {
		t.Fatalf("good files: %v", err)
	}
	read := func(name string) string {
		content, err := os.ReadFile(in(name))
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	good := map[string]string{}
	for _, name := range []string{"ca.pem", "own.pem", "own.key"} {
		good[name] = read(name)
	}
	cas := []string{":6: upstreams[0].xds.tls.caFile: ", ":17: downstream.listeners[0].tls.clientCAs[0].file: "}
	certs := []string{":7: upstreams[0].xds.tls.certFile: ", ":13: downstream.listeners[0].tls.certFile: "}
	keys := []string{":8: upstreams[0].xds.tls.keyFile: ", ":14: downstream.listeners[0].tls.keyFile: "}
	bad := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("no certificate")}))
	for _, c := range []struct {
		rule, file string
		content    string
		fields     []string
		want       string
	}{
		{"roots that are text", "ca.pem", "not found\n", cas, "has no certificate in PEM form: want text from -----BEGIN CERTIFICATE----- on"},
		{"roots that are empty", "ca.pem", "", cas, "is empty: want certificates in PEM form"},
		{"roots in DER form", "ca.pem", string(der), cas, "convert it with openssl x509 -inform der"},
		{"roots that are a key", "ca.pem", read("ca.key"), cas, "give the file with the certificate"},
		{"roots that do not decode", "ca.pem", bad, cas, "has no certificate in PEM form"},
		{"a certificate that is text", "own.pem", "not found\n", certs, "has no certificate in PEM form"},
		{"a certificate that does not decode", "own.pem", bad, certs, "the certificate does not decode"},
		{"a certificate and a key in each other's place", "own.pem", read("own.key"), certs, "give the file with the certificate"},
		{"a key that is a certificate", "own.key", read("own.pem"), keys, "has no private key in PEM form"},
		{"the key of another certificate", "own.key", read("ca.key"), keys, "give the key that the certificate was issued for"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			write(t, in(c.file), c.content)
			defer write(t, in(c.file), good[c.file])
			cfg, err := config.Check(path, sources()...)
			if cfg == nil || err == nil {
				t.Fatalf("%v, %v", cfg, err)
			}
			for _, field := range c.fields {
				if !strings.Contains(err.Error(), path+field+in(c.file)) {
					t.Errorf("no mistake in %q:\n%v", field, err)
				}
			}
			if n := strings.Count(err.Error(), c.want); n != len(c.fields) {
				t.Errorf("%q is there %d times of %d:\n%v", c.want, n, len(c.fields), err)
			}
		})
	}
	t.Run("a relay loads the config, and keeps to what it has", func(t *testing.T) {
		write(t, in("ca.pem"), "not found\n")
		if _, err := config.Load(path, sources()...); err != nil {
			t.Error(err)
		}
	})
}
