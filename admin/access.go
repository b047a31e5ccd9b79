package admin

import (
	"cmp"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"

	"meshrelay/config"
	"meshrelay/internal/owner"
)

// isIn reports whether a list has the user of a peer, or one of its groups.
func (who peer) isIn(a config.Access) bool {
	return slices.Contains(a.UIDs, who.UID) || slices.Contains(a.GIDs, who.GID) ||
		slices.ContainsFunc(who.Groups, func(gid int) bool { return slices.Contains(a.GIDs, gid) })
}

// restricted reports whether other users than the relay's and root may use the socket. Then each request is judged.
func (c Config) restricted() bool { return !c.Readers.IsEmpty() || !c.Operators.IsEmpty() }

// permit returns why a peer may not send a request over the socket. acts is set for a request that carries out an
// action. Operators may read, too.
func (c Config) permit(who peer, acts bool) error {
	field, may, what := "admin.readers", who.isIn(c.Readers) || who.isIn(c.Operators), "read"
	if acts {
		field, may, what = "admin.operators", who.isIn(c.Operators), "carry out actions"
	}
	if !c.restricted() || owner.Trusts(who.UID) || may {
		return nil
	}
	shown := who.Groups[:min(len(who.Groups), 16)]
	return refuse(http.StatusForbidden, "user %d (group %d, and %v) may not %s: ask for the user or one of its groups in %s of the relay's config",
		who.UID, who.GID, shown, what, field)
}

// judged passes the requests over the socket that their peers may send. Other connections are not judged here.
func (s *Server) judged(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if who, overSocket := peerOf(r.Context()); overSocket && s.cfg.restricted() {
			_, pattern := mux.Handler(r)
			action := s.actions[pattern]
			if err := s.cfg.permit(who, action != "" || r.Method != http.MethodGet && r.Method != http.MethodHead); err != nil {
				line := s.auditLine(r, cmp.Or(action, "read"))
				s.auditEnd(line, err)
				s.refuse(w, r, err)
				return
			}
		}
		mux.ServeHTTP(w, r)
	})
}

// share gives the open socket to the configured group.
func (s *Server) share() error {
	path := s.cfg.Socket
	info, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("admin socket: %w", err)
	}
	if _, gid := owner.Of(info); gid != s.cfg.Group { // otherwise the relay may lack the permission to change it
		if err := os.Lchown(path, -1, s.cfg.Group); err != nil {
			return fmt.Errorf("admin socket: can not give it to group %d: %w: make the relay's user a member of that group", s.cfg.Group, err)
		}
	}
	if err := os.Chmod(path, 0o660); err != nil { //nolint:gosec // the group is configured, and each request is judged
		return fmt.Errorf("admin socket: %w", err)
	}
	dir := filepath.Dir(path)
	if info, err := os.Stat(dir); err == nil {
		if _, gid := owner.Of(info); info.Mode().Perm()&0o001 == 0 && (gid != s.cfg.Group || info.Mode().Perm()&0o010 == 0) {
			s.log.Warn("group can not reach the admin socket", "group", s.cfg.Group, "dir", dir, "hint", "let the group search the directory, or set admin.socket to a path in another one")
		}
	}
	return nil
}
