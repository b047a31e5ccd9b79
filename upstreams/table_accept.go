package upstreams

import (
	"errors"
	"time"

	"github.com/zeebo/xxh3"

	"meshrelay/adsclient"
	"meshrelay/mirror"
)

// errPanicked tells that content is not tried again.
var errPanicked = errors.New("internal error of the relay, as before: it is tried again when it changes; the log has where")

// accept takes over a new or changed element and reports whether the record's
// content is another now. A bad element leaves the last good content as it is. So does one
// over which the code panics: that costs this element only, and it is not tried again.
func (t *table) accept(sp *spelling, rec *record, name string, raw adsclient.RawResource, out *outcome) bool {
	rec.hash, rec.relayed = xxh3.Hash128(raw.Any), t.relay
	rec.say(raw.Version)
	before := rec.size()
	defer func() { t.account(before, rec.size()) }()
	err := errPanicked
	if sp.panicked[name] != rec.hash {
		var differs bool
		if differs, err = t.decode(sp, rec, name, raw); err == nil {
			delete(sp.panicked, name)
			rec.at = time.Now().Unix()
			return differs
		}
	}
	var p *mirror.Panic
	if errors.As(err, &p) && len(sp.panicked) < maxKeptRefused {
		sp.panicked[name] = rec.hash
	}
	sp.refuse(name, err, out)
	rec.hash = xxh3.Uint128{} // looked at again, and reported, each time it comes
	return false
}

// decode takes over the content of an element, or returns what is wrong with it.
func (t *table) decode(sp *spelling, rec *record, name string, raw adsclient.RawResource) (differs bool, err error) {
	defer func() {
		if p := mirror.Recovered(recover()); p != nil {
			differs, err = false, t.costs(name, p)
		}
	}()
	r, path, err := mirror.DecodeStamped(sp.kind, raw.Any, t.importer.source, t.importer.stampFor(t.relay))
	if err != nil {
		return false, err
	}
	if rec.version == r.SourceVersion() {
		rec.version = r.SourceVersion() // a relay gives both the same: held once
	}
	return t.take(sp, rec, r, path)
}

// costs counts and tells a panic, and returns it as an error of the resource with that name.
func (t *table) costs(name string, p *mirror.Panic) error {
	t.panics++
	t.panicked(name, p)
	return p
}
