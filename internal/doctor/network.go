package doctor

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"meshrelay/internal/certfile"
	"meshrelay/internal/text"
)

// soonShare limits the life of a certificate: in its last 1/soonShare there is a warning.
const soonShare = 10

// Server is a gRPC server as a client reaches it.
type Server struct {
	// Address is host:port.
	Address string
	// TLS is how to reach it, with InsecureSkipVerify unset; nil for plaintext.
	TLS *tls.Config
	// Roots is the source of the trusted roots, such as a file.
	Roots string
	// Now is the present time.
	Now time.Time
}

// Reach checks the way to a server layer by layer, and stops at the first failure: the name, the port,
// then plaintext or TLS with its certificates.
func (s Server) Reach(ctx context.Context) []Finding {
	host, port, err := net.SplitHostPort(s.Address)
	if err != nil {
		return []Finding{Bad("address", s.Address, "the address is not host:port", err.Error(), "write it as host:port")}
	}
	found := []Finding{}
	if net.ParseIP(host) == nil {
		addresses, err := net.DefaultResolver.LookupHost(ctx, host)
		if err != nil {
			return []Finding{Bad("dns", s.Address, fmt.Sprintf("the name %s does not resolve", host), err.Error(),
				"correct the host in addresses, or check the DNS of this host: getent hosts "+host)}
		}
		found = append(found, Good("dns", s.Address, "%s is %s", host, text.Some(addresses, 3)))
	}
	conn, err := dial(ctx, s.Address)
	if err != nil {
		return append(found, unreachable(s.Address, port, err))
	}
	defer conn.Close()
	if s.TLS == nil {
		return append(found, s.plaintext(ctx, conn))
	}
	return append(found, s.secure(ctx, conn, host)...)
}

func dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if end, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(end) // it fails only on a closed connection
	}
	return conn, nil
}

// usualPorts is the fix for a wrong port.
const usualPorts = "check the port: an istiod has 15012 (TLS) and 15010 (plaintext), a relay the ports of its downstream.listeners"

func unreachable(address, port string, err error) Finding {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return Bad("tcp", address, "connection refused", "nothing listens on port "+port+" there", usualPorts)
	case late(err), errors.Is(err, syscall.ETIMEDOUT):
		return Bad("tcp", address, "no answer to a connection", "packets are lost on the way", "check firewalls, network policies and routes between this host and "+address)
	}
	return Bad("tcp", address, "no connection", cause(err), "check the network of this host: routes, firewalls, and the address")
}

// late reports whether err is the end of the time limit.
func late(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
}

// cause returns the innermost text of an error of a connection.
func cause(err error) string {
	if op, is := errors.AsType[*net.OpError](err); is && op.Err != nil {
		return op.Err.Error()
	}
	return err.Error()
}

// preface is the connection preface of an HTTP/2 client with an empty SETTINGS frame.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// plaintext checks that a server speaks HTTP/2 without TLS.
func (s Server) plaintext(ctx context.Context, conn net.Conn) Finding {
	answer := make([]byte, 9)
	_, err := conn.Write([]byte(preface))
	n := 0
	if err == nil {
		n, err = conn.Read(answer)
	}
	switch text := string(answer[:n]); {
	case n >= 4 && answer[3] == 4 && !strings.HasPrefix(text, "HTTP/"):
		return Good("plaintext", s.Address, "speaks HTTP/2 without TLS, as configured")
	case strings.HasPrefix(text, "HTTP/"):
		return Bad("plaintext", s.Address, "the port is that of an HTTP server, not of a gRPC server", "it answers HTTP/1, as the admin address of a relay or the monitoring port of an istiod does", usualPorts)
	case s.takesTLS(ctx):
		return Bad("plaintext", s.Address, "the server wants TLS, and the config has plaintext: true", "it answers a TLS handshake, but no plaintext",
			"replace plaintext: true by a section tls, or set the plaintext port (15010 of an istiod)")
	case err != nil:
		return Bad("plaintext", s.Address, "the server does not speak HTTP/2", cause(err), usualPorts)
	}
	return Bad("plaintext", s.Address, "the server does not speak HTTP/2", fmt.Sprintf("it begins with %q", answer[:n]), usualPorts)
}

// takesTLS reports whether a server answers a TLS handshake in any way.
func (s Server) takesTLS(ctx context.Context) bool {
	conn, err := dial(ctx, s.Address)
	if err != nil {
		return false
	}
	defer conn.Close()
	err = tls.Client(conn, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}).HandshakeContext(ctx) //nolint:gosec // nothing is sent after the handshake
	op, is := errors.AsType[*net.OpError](err)
	return err == nil || errors.As(err, new(tls.AlertError)) || is && op.Op == "remote error"
}

// secure checks TLS. Its handshake does not verify, so that it can explain what is wrong with the
// certificates. It sends nothing over that connection.
func (s Server) secure(ctx context.Context, conn net.Conn, host string) []Finding {
	cfg := s.TLS.Clone()
	cfg.InsecureSkipVerify, cfg.NextProtos = true, []string{"h2"} // verified below
	cfg.ServerName = cmp.Or(cfg.ServerName, host)
	client := tls.Client(conn, cfg)
	if err := client.HandshakeContext(ctx); err != nil {
		return []Finding{s.noHandshake(err)}
	}
	state := client.ConnectionState()
	if len(state.PeerCertificates) == 0 {
		return []Finding{Bad("tls", s.Address, "the server shows no certificate", "", usualPorts)}
	}
	leaf := state.PeerCertificates[0]
	if f, bad := s.chain(cfg, state.PeerCertificates); bad {
		return []Finding{f}
	}
	if err := leaf.VerifyHostname(cfg.ServerName); err != nil {
		names := namesOf(leaf)
		fix := "set tls.serverName to a name of that certificate"
		if len(names) > 0 {
			fix = fmt.Sprintf("set tls.serverName to a name of that certificate, such as %s", names[0])
		}
		return []Finding{Bad("tls", s.Address, fmt.Sprintf("the certificate is not for %s", cfg.ServerName), "it is for "+orNothing(text.Some(names, 5)), fix)}
	}
	found := []Finding{Good("tls", s.Address, "certificate for %s, signed by %s, until %s", cfg.ServerName, nameOf(leaf.Issuer.String()), stamp(leaf.NotAfter))}
	if state.NegotiatedProtocol != "h2" {
		return []Finding{s.notGRPC()}
	}
	if f, soon := renewSoon("tls", s.Address, "the certificate of the server", leaf, s.Now); soon {
		found[0] = f
	}
	return found
}

func (s Server) noHandshake(err error) Finding {
	if record, is := errors.AsType[tls.RecordHeaderError](err); is {
		why := "its answer to the handshake is not TLS"
		if strings.HasPrefix(string(record.RecordHeader[:]), "HTTP/") {
			why = "it answers HTTP without TLS"
		}
		return Bad("tls", s.Address, "the server speaks plaintext there", why,
			"set the port for TLS (15012 of an istiod), or replace tls by plaintext: true")
	}
	if late(err) {
		return Bad("tls", s.Address, "no answer to the TLS handshake", "the server accepts the connection and sends nothing", "check the port, and that the server is healthy")
	}
	if strings.Contains(err.Error(), "no application protocol") {
		return s.notGRPC()
	}
	return Bad("tls", s.Address, "the TLS handshake fails", cause(err), "check the port, and whether the server wants a client certificate: tls.certFile and tls.keyFile")
}

// notGRPC returns the finding about a server that speaks TLS, but not HTTP/2.
func (s Server) notGRPC() Finding {
	return Bad("tls", s.Address, "the port is that of an HTTPS server, not of a gRPC server", "it does not offer HTTP/2 in the handshake (ALPN)", usualPorts)
}

// chain verifies the certificates of a server, except for its name.
func (s Server) chain(cfg *tls.Config, certificates []*x509.Certificate) (f Finding, bad bool) {
	leaf, between := certificates[0], x509.NewCertPool()
	for _, c := range certificates[1:] {
		between.AddCert(c)
	}
	for _, c := range certificates {
		switch {
		case s.Now.Before(c.NotBefore):
			return Bad("clock", s.Address, fmt.Sprintf("the certificate of %s is valid only in %s", nameOf(c.Subject.String()), c.NotBefore.Sub(s.Now).Round(time.Second)),
				fmt.Sprintf("it begins at %s, and the clock here shows %s", stamp(c.NotBefore), stamp(s.Now)),
				"correct the clock of this host (timedatectl, chronyc tracking), or that of the server"), true
		case s.Now.After(c.NotAfter):
			return Bad("tls", s.Address, fmt.Sprintf("the certificate of %s expired %s ago", nameOf(c.Subject.String()), s.Now.Sub(c.NotAfter).Round(time.Second)),
				fmt.Sprintf("it ended at %s, and the clock here shows %s", stamp(c.NotAfter), stamp(s.Now)),
				"renew the certificate of the server, or correct the clock of this host"), true
		}
	}
	_, err := leaf.Verify(x509.VerifyOptions{Roots: cfg.RootCAs, Intermediates: between, CurrentTime: s.Now})
	if err == nil {
		return Finding{}, false
	}
	if errors.As(err, new(x509.UnknownAuthorityError)) {
		return Bad("tls", s.Address, "the certificate of the server is signed by a root that is not trusted",
			fmt.Sprintf("it is signed by %s, which is not among the roots in %s", nameOf(certificates[len(certificates)-1].Issuer.String()), s.Roots),
			"put the root of that mesh into tls.caFile: kubectl get configmap istio-ca-root-cert -n istio-system -o jsonpath='{.data.root-cert\\.pem}'"), true
	}
	return Bad("tls", s.Address, "the certificate of the server does not verify", err.Error(), "check the certificate: openssl s_client -showcerts -connect "+s.Address), true
}

// renewSoon returns a warning about a certificate in the last part of its life.
func renewSoon(check, target, what string, c *x509.Certificate, now time.Time) (Finding, bool) {
	left := c.NotAfter.Sub(now)
	if left > c.NotAfter.Sub(c.NotBefore)/soonShare {
		return Finding{}, false
	}
	return Doubt(check, target, fmt.Sprintf("%s expires in %s", what, left.Round(time.Second)), "less than a tenth of its life is left: its automatic renewal may be broken", "renew it before "+stamp(c.NotAfter)), true
}

// OwnCertificate checks the certificate of a client or a listener, and its key.
func OwnCertificate(certFile, keyFile string, now time.Time) Finding {
	pair, err := certfile.Pair(certFile, keyFile)
	if err != nil {
		return Bad("certificate", certFile, "the certificate or its key can not be used", err.Error(), "correct certFile and keyFile: two PEM files, a certificate and its key")
	}
	switch leaf := pair.Leaf; {
	case now.Before(leaf.NotBefore):
		return Bad("clock", certFile, "the certificate is not valid yet", fmt.Sprintf("it begins at %s, and the clock here shows %s", stamp(leaf.NotBefore), stamp(now)), "correct the clock of this host, or renew the certificate")
	case now.After(leaf.NotAfter):
		return Bad("certificate", certFile, "the certificate has expired", "it ended at "+stamp(leaf.NotAfter), "renew it")
	default:
		if f, soon := renewSoon("certificate", certFile, "the certificate", leaf, now); soon {
			return f
		}
		return Good("certificate", certFile, "certificate for %s until %s", orNothing(text.Some(namesOf(leaf), 3)), stamp(leaf.NotAfter))
	}
}

// namesOf returns the names for which a certificate is valid.
func namesOf(c *x509.Certificate) (names []string) {
	names = append(names, c.DNSNames...)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	for _, u := range c.URIs {
		names = append(names, u.String())
	}
	return names
}

func orNothing(name string) string { return cmp.Or(name, "no name") }

// nameOf returns a distinguished name, or a text for an empty one.
func nameOf(dn string) string { return cmp.Or(dn, "a CA without a name") }

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
