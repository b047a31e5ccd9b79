package upstreams

import (
	"meshrelay/config"
	"meshrelay/mirror"
	"meshrelay/state"
)

// restore implements Source.
func (x *XDS) restore(saved state.Saved, same bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if saved.Meta.Synced || len(saved.Records) > 0 && x.gate.isFresh() {
		x.gate.restore(saved)
	}
	x.table.adopt(saved.Records, same)
	if !same {
		x.restate(true)
	}
}

// kept implements Source.
func (x *XDS) kept() []state.Record {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.table.records()
}

// restateAll implements Source.
func (x *XDS) restateAll(thaw bool) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.gate.restate()
	if thaw {
		if err := x.gate.thaw(); err != nil {
			x.gate.abandon()
			return err
		}
	}
	x.table.sayAll()
	x.gate.finish(x.table.unsettled(), false)
	return nil
}

// setLimits implements Source.
func (x *XDS) setLimits(cfg config.Upstream) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.table.limits, x.status.Required = cfg.Limits, cfg.Required
}

// free implements Source.
func (x *XDS) free() { x.freeCreds() }

// restore implements Source. What is restored is served until the files have been read.
func (f *File) restore(saved state.Saved, same bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if saved.Meta.Synced || len(saved.Records) > 0 && f.gate.isFresh() {
		f.gate.restore(saved)
	}
	if same {
		return
	}
	f.gate.restate()
	for _, r := range saved.Records {
		original := r.Original
		if original == nil {
			original = r.Resource
		}
		if reason, _ := f.importer.check(original, nil); reason != imported {
			continue
		}
		if held, reshaped, err := f.importer.reshape(original, nil); err == nil {
			again := state.Record{Resource: held, At: r.At}
			if reshaped {
				again.Original = original
			}
			f.gate.put(again)
		}
	}
	f.gate.finish(false, true)
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
	return out
}

// restateAll implements Source.
func (f *File) restateAll(thaw bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fresh {
		// The files have not been read: what is served is what they are known to say.
		if !thaw {
			return nil
		}
		f.gate.restate()
		err := f.gate.thaw()
		f.gate.abandon()
		return err
	}
	f.gate.restate()
	if thaw {
		if err := f.gate.thaw(); err != nil {
			f.gate.abandon()
			return err
		}
	}
	f.putAll()
	f.gate.finish(false, false)
	return nil
}

// setLimits implements Source.
func (f *File) setLimits(cfg config.Upstream) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.limits, f.status.Required = cfg.Limits, cfg.Required
}

// free implements Source.
func (f *File) free() {}

// trace says of a key that it is served against what its source says, if so that is served against what its source says.
func (g *gate) trace(key mirror.Key) (Trace, bool) {
	leaving, frozen := g.isLeaving(key)
	detail := ""
	switch {
	case frozen:
		detail = "the upstream says otherwise, and is frozen: relay unfreeze " + g.name
	case leaving:
		detail = "the upstream has deleted it, and its guard holds that back: relay release " + g.name
	default:
		return Trace{}, false
	}
	r := g.store.Get(key)
	return Trace{Upstream: g.name, Original: key, Key: key, Detail: detail, Resource: r, From: r}, r != nil
}
