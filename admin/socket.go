package admin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"meshrelay/internal/owner"
)

// socketPatience bounds the check whether another process serves a socket.
const socketPatience = time.Second

// peer is the process at the other end of a Unix socket.
type peer struct {
	UID, PID int
}

// Network implements net.Addr.
func (peer) Network() string { return "unix" }

func (p peer) String() string { return fmt.Sprintf("uid=%d pid=%d", p.UID, p.PID) }

type peerKey struct{}

// withPeer adds a connection to ctx, and the peer of one over the socket.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	ctx = context.WithValue(ctx, placeKey{}, c)
	if p, ok := c.RemoteAddr().(peer); ok {
		return context.WithValue(ctx, peerKey{}, p)
	}
	return ctx
}

// peerOf returns the peer of a connection, and whether the connection is over the socket.
func peerOf(ctx context.Context) (who peer, overSocket bool) {
	who, overSocket = ctx.Value(peerKey{}).(peer)
	return who, overSocket
}

// socketOnly lets through requests over the socket.
func (s *Server) socketOnly(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := s.overSocket(r); err != nil {
			s.refuse(w, r, err)
			return
		}
		endIn(w, operatorTimeout)
		next(w, r)
	})
}

// overSocket refuses requests that did not come over the socket. The file system decides who may use it.
func (s *Server) overSocket(r *http.Request) error {
	if _, ok := peerOf(r.Context()); ok {
		return nil
	}
	text := fmt.Sprintf("%s %s is for the relay's Unix socket only", r.Method, strings.Join(strings.Fields(r.URL.Path), " "))
	if st := s.socket.Load(); st.path != "" {
		text += fmt.Sprintf(", %s: use the relay command on the relay's own host, or curl --unix-socket %s", st.path, st.path)
	} else {
		text += ", which is not open: " + st.problem
	}
	return refusal{http.StatusForbidden, errors.New(text)}
}

// socketState is the path of the open socket, or the reason why it is not open.
type socketState struct{ path, problem string }

// openSocket opens the configured socket. If this fails, the relay runs without it and reports it in the log and in
// /ready.
func (s *Server) openSocket() net.Listener {
	if s.cfg.Socket == "" {
		s.socket.Store(&socketState{problem: "none is configured"})
		return nil
	}
	if dir := filepath.Dir(s.cfg.Socket); s.cfg.OwnSocketDir && closeToOthers(dir) {
		s.log.Info("write permission of others removed", "dir", dir)
	}
	lis, err := listenUnix(s.cfg.Socket)
	if err != nil {
		if old := s.socket.Swap(&socketState{problem: err.Error()}); old.problem != err.Error() {
			s.log.Warn("admin socket not open", "socket", s.cfg.Socket, "err", err)
		}
		return nil
	}
	s.socket.Store(&socketState{path: s.cfg.Socket})
	s.log.Info("listening for operators", "socket", s.cfg.Socket)
	return lis
}

// awaitSocket tries to open the configured socket until it succeeds: another process may serve it and end soon. It
// returns nil if ctx ends first.
func (s *Server) awaitSocket(ctx context.Context) net.Listener {
	retry := time.NewTicker(s.socketRetry)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-retry.C:
			if lis := s.openSocket(); lis != nil {
				return lis
			}
		}
	}
}

// closeToOthers removes the write permission of others from a directory of this user, and reports whether it did. A
// mounted volume may have it (fsGroup in Kubernetes). It does not change shared directories such as /tmp; private
// refuses those.
func closeToOthers(dir string) bool {
	info, err := os.Lstat(dir) // another user may have made a link
	if err != nil || !info.IsDir() || info.Mode()&fs.ModeSticky != 0 || info.Mode().Perm()&0o022 == 0 {
		return false
	}
	uid, _ := owner.Of(info)
	return uid == os.Geteuid() && os.Chmod(dir, info.Mode()&^0o022) == nil
}

// listenUnix listens on a Unix socket that only its owner can open. It replaces a socket that no process serves.
// Closing the listener removes the socket.
func listenUnix(path string) (net.Listener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("admin socket: %w: set admin.socket to a path in a directory that the relay can write to", err)
	}
	if err := private(dir); err != nil {
		return nil, fmt.Errorf("admin socket %s: %w: set admin.socket to a path in a directory of the relay's own", path, err)
	}
	if err := removeStale(path); err != nil {
		return nil, fmt.Errorf("admin socket %w", err)
	}
	config := net.ListenConfig{Control: closedToOthers}
	lis, err := config.Listen(context.Background(), "unix", path) // Listen does not block
	if err != nil {
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	// On some systems closedToOthers does nothing.
	if err := os.Chmod(path, 0o600); err != nil {
		lis.Close()
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	return peerListener{lis.(*net.UnixListener)}, nil
}

// private returns an error unless a directory belongs to this user, only this user can write to it, and others can
// not replace it.
func private(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	switch uid, _ := owner.Of(info); {
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory", dir)
	case uid != os.Geteuid():
		return fmt.Errorf("directory %s belongs to user %d, and the relay is user %d", dir, uid, os.Geteuid())
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("others can write to directory %s (%v)", dir, info.Mode().Perm())
	}
	return owner.CheckAncestors(dir)
}

// removeStale removes a socket that no process serves.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s is a file and not a socket: remove it, or set admin.socket to another path", path)
	}
	conn, err := net.DialTimeout("unix", path, socketPatience)
	if err == nil {
		conn.Close()
		return fmt.Errorf("%s: another process serves it: end that, or set admin.socket to another path", path)
	}
	// A full backlog (EAGAIN) also means that another process serves it.
	if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// peerListener accepts connections whose remote address is a peer.
type peerListener struct{ *net.UnixListener }

// Accept implements net.Listener.
func (l peerListener) Accept() (net.Conn, error) {
	c, err := l.AcceptUnix()
	if err != nil {
		return nil, err
	}
	return &peerConn{c, credentials(c)}, nil
}

type peerConn struct {
	*net.UnixConn
	peer peer
}

// RemoteAddr implements net.Conn.
func (c *peerConn) RemoteAddr() net.Addr { return c.peer }

// checkServer returns an error unless a socket and the process that serves it belong to the user of this process or
// to root.
func checkServer(path string, conn net.Conn) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	uid, _ := owner.Of(info)
	if served := credentials(conn); served.UID >= 0 && uid != served.UID {
		return fmt.Errorf("socket %s belongs to user %d, and user %d serves it: it is not the relay's", path, uid, served.UID)
	}
	if !owner.Trusts(uid) {
		return fmt.Errorf("socket %s, given by the admin address, belongs to user %d, and you are user %d: if the relay runs as that user, use --socket, or run the command as that user", path, uid, os.Geteuid())
	}
	return nil
}
