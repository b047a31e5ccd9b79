package config

import (
	"fmt"
	"path/filepath"

	"meshrelay/mirror"
)

func (v *validator) staleness(at string, s Staleness) {
	v.expiry(at, s.StaleAfter, s.ExpireAfter, true)
	first := map[mirror.Kind]string{}
	for i, k := range s.Kinds {
		field := fmt.Sprintf("%s.kinds[%d]", at, i)
		v.errorIf(len(k.Kinds) == 0, field+".kinds", "missing: name at least one kind")
		v.kinds(field+".kinds", k.Kinds, "", first, func(string, mirror.Kind) {})
		v.expiry(field, k.StaleAfter, k.ExpireAfter, false)
	}
}

// expiry checks that resources expire after they become stale.
func (v *validator) expiry(at string, after Duration, expire OpenEnded, always bool) {
	field := at + ".expireAfter"
	v.errorIf((always || v.noted(field) || v.noted(at+".staleAfter")) && expire != 0 && expire.D() < after.D(), field, "%v is less than staleAfter, which is %v: set both, or write never", expire.D(), after.D())
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
