package xds

import (
	"context"
	"errors"
	"net"
	"sync"

	"google.golang.org/grpc/credentials"

	"meshrelay/adsclient"
)

// tlsCredentials are made of files once those can be used: a relay that starts while one of
// them is missing serves what it has of the upstream, and that of all others.
type tlsCredentials struct {
	files adsclient.TLSFiles

	mu    sync.Mutex // guards all below
	creds credentials.TransportCredentials
	free  func()
	ended bool
}

// load returns the credentials, or what is wrong with a file.
func (c *tlsCredentials) load() (credentials.TransportCredentials, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return nil, errors.New("the upstream has ended")
	}
	if c.creds == nil {
		creds, free, err := adsclient.TransportCredentials(c.files)
		if err != nil {
			return nil, err
		}
		c.creds, c.free = creds, free
	}
	return c.creds, nil
}

// close frees what the credentials hold.
func (c *tlsCredentials) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	if c.free != nil {
		c.free()
		c.free = nil
	}
}

// ClientHandshake implements credentials.TransportCredentials.
func (c *tlsCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	creds, err := c.load()
	if err != nil {
		return nil, nil, err
	}
	return creds.ClientHandshake(ctx, authority, conn)
}

// ServerHandshake implements credentials.TransportCredentials. It always fails.
func (c *tlsCredentials) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these are credentials of a client")
}

// Info implements credentials.TransportCredentials.
func (c *tlsCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials. The files are the same for all.
func (c *tlsCredentials) Clone() credentials.TransportCredentials { return c }

// OverrideServerName implements credentials.TransportCredentials. The authority of the
// connection has that part.
func (c *tlsCredentials) OverrideServerName(string) error {
	return errors.New("the server name is the authority of the connection")
}
