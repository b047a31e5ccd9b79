package upstreams

import (
	"fmt"

	"meshrelay/config"
	"meshrelay/mirror"
	"meshrelay/state"
)

// restore implements Source.
func (x *XDS) restore(saved state.Saved) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.status.LastUpdate = saved.Meta.LastContact
	x.gate.restore(saved)
}

// admits implements Source.
func (x *XDS) admits(r state.Record) bool { return x.table.importer.admits(r) }

// adopt implements Source.
func (x *XDS) adopt(records []state.Record, same bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	asked := map[string]bool{}
	for _, url := range subscriptions(false, x.extra) {
		asked[url] = true
	}
	held := x.table.adopt(records, same, asked)
	x.unswept = true
	if same {
		return
	}
	x.gate.restateOf(held)
	x.table.sayAll()
	x.gate.finish(true, true)
}

// kept implements Source.
func (x *XDS) kept() []state.Record {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.table.records()
}

// restateAll implements Source.
func (x *XDS) restateAll(thaw func() error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.gate.restate()
	if thaw != nil {
		if err := thaw(); err != nil {
			x.gate.abandon()
			return err
		}
	}
	x.sayRest()
	return nil
}

// sayAll has the gate told all that the source has. The caller holds mu.
func (x *XDS) sayAll() {
	x.gate.restate()
	x.sayRest()
}

// sayRest is sayAll after restate.
func (x *XDS) sayRest() {
	x.table.sayAll()
	if x.unswept {
		x.gate.keepRest()
	}
	x.gate.finish(x.table.unsettled(), false)
}

// setLimits implements Source.
func (x *XDS) setLimits(cfg config.Upstream) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.table.limits, x.status.Required = cfg.Limits, cfg.Required
}

// check implements Source.
func (x *XDS) check() error {
	if x.creds == nil {
		return nil
	}
	if _, err := x.creds.load(); err != nil {
		return fmt.Errorf("upstream %s: %w", x.table.importer.source, err)
	}
	return nil
}

// free implements Source.
func (x *XDS) free() {
	if x.creds != nil {
		x.creds.close()
	}
}

// restore implements Source.
func (f *File) restore(saved state.Saved) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.LastUpdate = saved.Meta.LastContact
	f.gate.restore(saved)
}

// admits implements Source.
func (f *File) admits(r state.Record) bool { return f.importer.admits(r) }

// adopt implements Source. What is adopted is served until all files have been read, and
// none of them was broken.
func (f *File) adopt(records []state.Record, same bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.carried = make(map[mirror.Key]state.Record, len(records))
	if same {
		for _, r := range records {
			f.carried[r.Resource.Key()] = r
		}
		return
	}
	held := make([]mirror.Key, 0, len(records))
	for _, r := range records {
		held = append(held, r.Resource.Key())
	}
	f.gate.restateOf(held)
	for _, r := range records {
		f.adoptOne(r)
	}
	f.gate.finish(false, true)
}

// adoptOne imports a record anew. One over which the code panics is set aside.
func (f *File) adoptOne(r state.Record) {
	defer func() {
		if p := mirror.Recovered(recover()); p != nil {
			_ = f.costs(r.Resource.Key().String(), p) // the files tell of it again
		}
	}()
	original := r.Original
	if original == nil {
		original = r.Resource
	}
	if f.fault != nil {
		f.fault(original)
	}
	if reason, _ := f.importer.check(original, nil, false); reason != imported {
		return
	}
	held, reshaped, err := f.importer.reshape(original, nil)
	if err != nil {
		return
	}
	again := state.Record{Resource: held, At: r.At}
	if reshaped {
		again.Original = original
	}
	f.carried[held.Key()] = again
	f.gate.put(again)
}

// kept implements Source.
func (f *File) kept() (out []state.Record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, h := range f.held {
		if h.resource != nil {
			out = append(out, h.kept(h.resource))
		}
	}
	for _, r := range f.carried {
		out = append(out, r)
	}
	return out
}

// restateAll implements Source.
func (f *File) restateAll(thaw func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gate.restate()
	if thaw != nil {
		if err := thaw(); err != nil {
			f.gate.abandon()
			return err
		}
	}
	f.putAll()
	if f.fresh {
		f.gate.keepRest()
	}
	f.gate.finish(false, false)
	return nil
}

// setLimits implements Source.
func (f *File) setLimits(cfg config.Upstream) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.limits, f.status.Required = cfg.Limits, cfg.Required
}

// check implements Source. A path that is not there yet is waited for.
func (f *File) check() error { return nil }

// free implements Source.
func (f *File) free() {}

// trace says of a key that it is served against what its source says, if so.
func (g *gate) trace(key mirror.Key) (Trace, bool) {
	leaving, frozen := g.isLeaving(key)
	detail := ""
	switch {
	case frozen:
		detail = "the upstream says otherwise, and is frozen: relay unfreeze " + g.name
	case leaving:
		detail = "the upstream has deleted it, and its guard holds that back: relay held " + g.name
	default:
		return Trace{}, false
	}
	r := g.store.Get(key)
	return Trace{Upstream: g.name, Original: key, Key: key, Detail: detail, Resource: r, From: r}, r != nil
}
