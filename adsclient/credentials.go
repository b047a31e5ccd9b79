package adsclient

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"sync"

	"google.golang.org/grpc/credentials"

	"meshrelay/internal/certfile"
)

// TLSFiles are files in PEM form. Each may be empty.
type TLSFiles struct {
	// CAFile has the roots to trust. If it is empty, those of the host.
	CAFile string
	// CertFile and KeyFile are the client certificate.
	CertFile, KeyFile string
}

// Credentials returns TLS credentials. Each connection reads the files. While a file can not be
// used, or has a certificate that is not valid yet, connections use the last good files.
func (f TLSFiles) Credentials(log *slog.Logger) credentials.TransportCredentials {
	return &fileCredentials{TransportCredentials: credentials.NewTLS(nil), files: f, pair: certfile.Renewing(f.CertFile, f.KeyFile), log: log}
}

// Check returns an error if a file can not be used now.
func (f TLSFiles) Check() error {
	_, err := f.Config()
	return err
}

// Config returns the configuration of a handshake with the files as they are now.
func (f TLSFiles) Config() (*tls.Config, error) {
	return f.config(certfile.Renewing(f.CertFile, f.KeyFile))
}

func (f TLSFiles) config(pair func() (tls.Certificate, error)) (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.CertFile != "" {
		pair, err := pair()
		if err != nil {
			return nil, fmt.Errorf("client certificate: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	if f.CAFile != "" {
		roots, err := certfile.Roots(f.CAFile)
		if err != nil {
			return nil, fmt.Errorf("CA file: %w", err)
		}
		cfg.RootCAs = roots
	}
	return cfg, nil
}

// fileCredentials implements TLSFiles.Credentials.
type fileCredentials struct {
	credentials.TransportCredentials // for everything except the handshake
	files                            TLSFiles
	log                              *slog.Logger

	mu   sync.Mutex
	pair func() (tls.Certificate, error)
	good credentials.TransportCredentials // nil until the files were good once
	told string                           // the error that was logged last
}

// ClientHandshake implements credentials.TransportCredentials.
func (c *fileCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c.mu.Lock()
	cfg, err := c.files.config(c.pair)
	if err == nil {
		c.good, c.told = credentials.NewTLS(cfg), ""
	}
	good := c.good
	if err != nil && good != nil && err.Error() != c.told {
		c.told = err.Error()
		c.log.Warn("TLS files can not be used, the last good ones are used", "err", err)
	}
	c.mu.Unlock()
	if good == nil {
		return nil, nil, err
	}
	return good.ClientHandshake(ctx, authority, conn)
}

// Clone implements credentials.TransportCredentials. All clones share the files.
func (c *fileCredentials) Clone() credentials.TransportCredentials { return c }
