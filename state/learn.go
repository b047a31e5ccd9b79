package state

import (
	"os"
	"syscall"
)

// readOnly takes in what is in a file that can not be written. Run tries on to take it into
// use.
func (k *Keeper) readOnly() {
	if _, err := checkDir(k.dir); err != nil {
		return
	}
	f, err := openOwn(k.path, os.O_RDONLY, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if lock(f, syscall.LOCK_SH) != nil {
		return
	}
	size, err := sizeOf(f)
	if err != nil {
		return
	}
	c, err := readFrom(f, size, k.format.version)
	if err != nil || c.err != nil && len(c.sources) == 0 {
		return
	}
	k.log.Info("the state can be read and not written", "path", k.path, "upstreams", len(c.sources))
	k.learn(c)
}

// learn takes in what a file has, and settles what that means for the sources that are
// followed already.
func (k *Keeper) learn(c *contents) {
	for _, s := range k.takeOver(c) {
		s.MarkAll() // without a lock, because it is not ours
	}
}

// marker is a Source that can say again all that it has.
type marker interface{ MarkAll() }

// takeOver is learn, and returns the sources that are to say again all that they have.
func (k *Keeper) takeOver(c *contents) (again []marker) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.size, k.status.Unusable = c.size, c.unusableCount
	k.mark, k.served = c.mark, k.served || c.hasServed()
	if c.unusableCount > 0 {
		k.log.Error("the state has resources that this version of the relay can not use; they are removed", "path", k.path, "resources", c.unusableCount, "some", c.unusable)
	}
	before := k.kept
	k.kept = map[string]*held{}
	for name, s := range c.sources {
		if _, goes := k.forget[name]; goes {
			continue
		}
		if _, stays := k.retained[name]; k.retained != nil && !stays && k.followed[name] == nil {
			k.forget[name] = struct{}{}
			continue
		}
		h := &held{ledger: s.ledger, orphans: s.orphans}
		if s.revisions() > 1 && k.bounds.age > 0 {
			h.expires = s.chapters[1].Time.Add(k.bounds.age)
		}
		if k.followed[name] == nil {
			saved := s.saved()
			h.saved = &saved
		}
		k.kept[name] = h
	}
	for name, f := range k.followed {
		now, was := k.kept[name], before[name]
		if now == nil {
			now = &held{}
		}
		if was == nil {
			was = &held{}
		}
		all, canSay := f.source.(marker)
		switch {
		case now.sameContent(was.ledger):
		case canSay:
			again = append(again, all)
			f.seen, f.lost = map[string]struct{}{}, false
		case !f.taken && !f.given:
			f.seen = map[string]struct{}{}
		case f.taken && now.count == 0 && was.count > 0:
			f.lost = true
			k.log.Error("the state has lost what was kept of the upstream, and keeps nothing of it until a restart", "upstream", name, "path", k.path)
		}
	}
	return again
}
