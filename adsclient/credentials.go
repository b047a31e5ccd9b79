package adsclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/tls/certprovider"
	"google.golang.org/grpc/credentials/tls/certprovider/pemfile"
	"google.golang.org/grpc/security/advancedtls"
)

// certRefresh is how often certificate files are looked at.
const certRefresh = 10 * time.Second

// TLSFiles are files in PEM form. They are read again when they change; a bad file
// does not replace a good one. Each may be empty.
type TLSFiles struct {
	// CAFile has the roots to trust; those of the host when empty.
	CAFile string
	// CertFile and KeyFile are the client certificate.
	CertFile, KeyFile string
}

// TransportCredentials returns TLS credentials, and the function that frees them. It fails when a
// file can not be used now.
func TransportCredentials(f TLSFiles) (credentials.TransportCredentials, func(), error) {
	return transportCredentials(f, certRefresh)
}

func transportCredentials(f TLSFiles, refresh time.Duration) (_ credentials.TransportCredentials, free func(), err error) {
	var providers []certprovider.Provider
	closeAll := func() {
		for _, p := range providers {
			p.Close()
		}
	}
	defer func() {
		if err != nil {
			closeAll()
		}
	}()
	provide := func(o pemfile.Options) (certprovider.Provider, error) {
		o.RefreshDuration = refresh
		p, err := pemfile.NewProvider(o)
		if err == nil {
			providers = append(providers, p)
		}
		return p, err
	}
	opts := &advancedtls.Options{VerificationType: advancedtls.CertAndHostVerification, MinTLSVersion: tls.VersionTLS12, MaxTLSVersion: tls.VersionTLS13}
	if f.CertFile != "" {
		if _, err = tls.LoadX509KeyPair(f.CertFile, f.KeyFile); err == nil {
			opts.IdentityOptions.IdentityProvider, err = provide(pemfile.Options{CertFile: f.CertFile, KeyFile: f.KeyFile})
		}
		if err != nil {
			return nil, nil, fmt.Errorf("client certificate %s, key %s: %w", f.CertFile, f.KeyFile, err)
		}
	}
	if f.CAFile != "" {
		// The provider would fail each connection instead, and say less.
		pem, err := os.ReadFile(f.CAFile)
		if err == nil && !x509.NewCertPool().AppendCertsFromPEM(pem) {
			err = fmt.Errorf("%s has no certificate in PEM form", f.CAFile)
		}
		if err == nil {
			opts.RootOptions.RootProvider, err = provide(pemfile.Options{RootFile: f.CAFile})
		}
		if err != nil {
			return nil, nil, fmt.Errorf("CA file: %w", err)
		}
	}
	creds, err := advancedtls.NewClientCreds(opts)
	return creds, closeAll, err
}

// TokenFile returns credentials that send the token in a file as a bearer token. The
// file is read for each stream, so that a rotated token is used from then on
// (PROTOCOL C19). The token is not sent without TLS.
func TokenFile(path string) credentials.PerRPCCredentials { return tokenFile(path) }

type tokenFile string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (f tokenFile) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	b, err := os.ReadFile(string(f))
	if err != nil {
		return nil, fmt.Errorf("token file: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if token == "" {
		return nil, fmt.Errorf("token file %s is empty", string(f))
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (tokenFile) RequireTransportSecurity() bool { return true }
