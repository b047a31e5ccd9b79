package config

import (
	"fmt"
	"path/filepath"
	"time"

	"meshrelay/mirror"
)

const (
	year = 365 * 24 * time.Hour
	// mostBytes bounds what can be said of memory and disk: 1 TiB.
	mostBytes = 1 << 40
)

func (v *validator) staleness(at string, s Staleness) {
	v.stale(at, s.StaleAfter, s.OnStale, s.ExpireAfter, func(string) bool { return true })
	first := map[mirror.Kind]string{}
	for i, k := range s.Kinds {
		field := fmt.Sprintf("%s.kinds[%d]", at, i)
		if len(k.Kinds) == 0 {
			v.errorf(field+".kinds", "missing: name at least one kind")
		}
		for n, word := range k.Kinds {
			this := fmt.Sprintf("%s.kinds[%d]", field, n)
			kinds, err := mirror.ParseKinds(word)
			if err != nil {
				v.errorf(this, "%v", err)
				continue
			}
			for _, kind := range kinds {
				if other, taken := first[kind]; taken {
					v.errorf(this, "%s is for %s already", other, kind)
					continue
				}
				first[kind] = this
			}
		}
		v.stale(field, k.StaleAfter, k.OnStale, k.ExpireAfter, v.noted)
	}
}

// stale checks what is said at a place. What a kind leaves out is as for the others, where it
// has been checked.
func (v *validator) stale(at string, after Duration, onStale string, expire OpenEnded, said func(field string) bool) {
	afterField, expireField := at+".staleAfter", at+".expireAfter"
	if said(afterField) {
		v.duration(afterField, after, time.Second, year)
	}
	if said(at + ".onStale") {
		v.oneOf(at+".onStale", onStale, OnStaleKeep, OnStaleDrop)
	}
	if said(expireField) {
		v.openEnded(expireField, expire, "never", time.Second, 10*year)
	}
	if (said(expireField) || said(afterField)) && expire != 0 && expire.D() < after.D() {
		v.errorf(expireField, "%v is less than staleAfter, which is %v: give both, or say never", expire.D(), after.D())
	}
}

func (v *validator) guard(at string, g Guard) {
	v.number(at+".percent", g.Percent, 0, 100)
	v.number(at+".count", g.Count, 0, 1_000_000_000)
	v.oneOf(at+".empty", g.Empty, EmptyHold, EmptyPass)
	v.openEnded(at+".holdFor", g.HoldFor, "forever", time.Second, year)
}

func (v *validator) limits(at string, l Limits) {
	v.number(at+".maxResources", l.MaxResources, 1, 100_000_000)
	if v.noted(at + ".maxBytes") {
		v.number(at+".maxBytes", l.MaxBytes, 1, mostBytes)
	}
	v.number(at+".maxResourceBytes", l.MaxResourceBytes, 1, 1<<30)
	if v.noted(at + ".maxResponseBytes") {
		v.number(at+".maxResponseBytes", l.MaxResponseBytes, 1, mostResponse)
	}
}

func (v *validator) state(s State) {
	v.duration("state.flushInterval", s.FlushInterval, 10*time.Millisecond, time.Minute)
	v.number("state.history.revisions", s.History.Revisions, 0, 10_000)
	v.duration("state.history.maxAge", s.History.MaxAge, time.Second, 10*year)
	v.number("state.history.maxBytes", s.History.MaxBytes, 1<<10, mostBytes)
}

func (v *validator) socket(c *Config) {
	path := c.Admin.Socket
	if path == "" {
		return
	}
	path = absolute(path)
	if len(path) > maxSocketPath {
		v.errorf("admin.socket", "%s is %d bytes long, and a Unix socket can have %d at most: choose a shorter path", path, len(path), maxSocketPath)
	}
	if filepath.Base(path) == "/" {
		v.errorf("admin.socket", "%s is no name for a file", path)
	}
}

// openEnded checks a duration that may have no end, of which without is the name.
func (v *validator) openEnded(field string, o OpenEnded, without string, least, most time.Duration) {
	if o != 0 && (o.D() < least || o.D() > most) {
		v.errorf(field, "%v is out of range: %v to %v, or %s", o.D(), least, most, without)
	}
}
