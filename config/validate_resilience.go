package config

import "path/filepath"

// staleness checks that resources expire after they become stale.
func (v *validator) staleness(at string, s Staleness) {
	v.errorIf(s.ExpireAfter != 0 && s.ExpireAfter.D() < s.StaleAfter.D(), at+".expireAfter", "%v is less than staleAfter, which is %v: set both, or write never", s.ExpireAfter.D(), s.StaleAfter.D())
}

func (v *validator) socket(c *Config) {
	path := c.Admin.Socket
	if path == "" {
		return
	}
	path = absolute(path)
	v.errorIf(len(path) > maxSocketPath, "admin.socket", "%s is %d bytes long, and a Unix socket can have %d at most: choose a shorter path", path, len(path), maxSocketPath)
	v.errorIf(filepath.Base(path) == "/", "admin.socket", "%s is not the name of a file", path)
}
