package lister

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"meshrelay/adsclient"
	"meshrelay/internal/identity"
	"meshrelay/internal/loopback"
)

// Access has the address of a server, and the credentials for it.
type Access struct {
	// Server is host:port.
	Server string
	// Plaintext connects without TLS. nil means true for loopback if all fields below are empty, and false
	// otherwise.
	Plaintext *bool
	// CAFile has the trusted roots. CertFile and KeyFile are the client certificate. ServerName is the
	// expected name in the server's certificate. TokenFile has a bearer token.
	CAFile, CertFile, KeyFile, ServerName, TokenFile string
}

// Apply sets the fields of cfg that concern the server and the connection.
func (a Access) Apply(cfg *Config) error {
	host, _, err := net.SplitHostPort(a.Server)
	if err != nil {
		return fmt.Errorf("server %q: want host:port: %w", a.Server, err)
	}
	secure := a.CAFile != "" || a.CertFile != "" || a.KeyFile != "" || a.ServerName != "" || a.TokenFile != ""
	plaintext := !secure && loopback.Host(host)
	if a.Plaintext != nil {
		plaintext = *a.Plaintext
	}
	cfg.Server = a.Server
	opts := []grpc.DialOption{grpc.WithUserAgent("relay-get")}
	if plaintext {
		if secure {
			return errors.New("certificates and tokens need TLS: leave out --plaintext")
		}
		cfg.Credentials, cfg.DialOptions = insecure.NewCredentials(), opts
		return nil
	}
	if (a.CertFile == "") != (a.KeyFile == "") {
		return errors.New("a client certificate needs both --cert-file and --key-file")
	}
	files := adsclient.TLSFiles{CAFile: a.CAFile, CertFile: a.CertFile, KeyFile: a.KeyFile}
	if err := files.Check(); err != nil {
		return err
	}
	if a.ServerName != "" {
		opts = append(opts, grpc.WithAuthority(a.ServerName))
	}
	if a.TokenFile != "" {
		opts = append(opts, grpc.WithPerRPCCredentials(adsclient.TokenFile(a.TokenFile)))
	}
	cfg.Credentials, cfg.DialOptions = files.Credentials(slog.New(slog.DiscardHandler)), opts
	return nil
}

// Namespace returns the namespace of the client certificate's SPIFFE ID, or "": a server refuses a node that claims
// another one (PROTOCOL C12).
func (a Access) Namespace() string {
	pair, err := tls.LoadX509KeyPair(a.CertFile, a.KeyFile)
	if err != nil {
		return "" // Apply tells
	}
	id, _, err := identity.Of(pair.Leaf)
	if err != nil {
		return "" // the server tells
	}
	namespace, _ := identity.Workload(id)
	return namespace
}
