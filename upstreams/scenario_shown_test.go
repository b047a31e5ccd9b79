package upstreams_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"meshrelay/mirror"
	"meshrelay/upstreams"
)

// These commands of scenarios name, compare and print what an upstream serves, holds and keeps.

// remember gives a name to what is served and on disk.
func (c *scenario) remember(args []string) error {
	revision, err := c.disk.revision(c.t.Context())
	c.remembered[args[0]] = memory{revision, c.served()}
	return err
}

// same counts what is served as it was when it was given a name, and not decoded anew.
func (c *scenario) same(args []string) error {
	now, n := c.served(), 0
	for _, r := range now {
		if slices.Contains(c.remembered[args[0]].served, r) {
			n++
		}
	}
	c.printf("%d of %d are the same\n", n, len(now))
	return nil
}

// show prints what is served, and what is held and frozen.
func (c *scenario) show([]string) error {
	counts := map[string]int{"dr": 0, "se": 0, "vs": 0}
	for _, r := range c.served() {
		counts[aliasOf(r.Kind())]++
	}
	var served []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		served = append(served, fmt.Sprintf("%d %s", counts[name], name))
	}
	c.printf("serves %s\n", strings.Join(served, ", "))
	st := c.now()
	if h := st.Held; h != nil {
		c.printf("held: %d of %d, %s; clock %s", h.Removals, h.Of, h.Reason, h.Clock)
		if !h.Until.IsZero() {
			c.printf(", %v left", time.Until(h.Until).Round(time.Second))
		}
		if h.Left != "" {
			c.printf(", %s left", h.Left)
		}
		c.printf("\n")
	}
	if f := st.Frozen; f != nil {
		c.printf("frozen: %d differ\n", f.Waiting)
	}
	if len(c.asked()) > 0 {
		c.printf("asked to repeat\n")
	}
	return nil
}

// status prints what is known of the upstream, but for what show prints.
func (c *scenario) status([]string) error {
	st := c.now()
	c.printf("%s", st.State)
	if !st.Synced {
		c.printf(", never synced")
	}
	if st.Stale {
		c.printf(", stale for %v", time.Since(st.StaleSince).Round(time.Second))
	}
	if st.Frozen != nil && st.Frozen.Revision > 0 {
		c.printf(", frozen at revision %d", st.Frozen.Revision)
	}
	c.printf("\n")
	counts := func(what string, of map[string]int) {
		for _, name := range slices.Sorted(maps.Keys(of)) {
			if of[name] != 0 {
				c.printf("%s: %d %s\n", what, of[name], name)
			}
		}
	}
	counts("expired", st.Expired)
	counts("left out", st.LeftOut)
	for _, kind := range slices.Sorted(maps.Keys(st.Drift)) {
		c.printf("drift: %d %s\n", st.Drift[kind], kind)
	}
	for _, r := range st.Refused {
		c.printf("refused: %s: %s\n", r.Resource, r.Reason)
	}
	if n := st.RefusedTotal - len(st.Refused); n > 0 {
		c.printf("refused: %d more\n", n)
	}
	if st.OverLimit > 0 {
		c.printf("over the limit: %d\n", st.OverLimit)
	}
	if n := len(st.NotOffered); n > 3 {
		c.printf("not offered: %d types\n", n)
	} else if n > 0 {
		c.printf("not offered: %s\n", strings.Join(st.NotOffered, " "))
	}
	if st.Silence != "" {
		c.printf("%s\n", st.Silence)
	}
	if st.NACKs > 0 {
		c.printf("NACKs: %d\n", st.NACKs)
	}
	if st.LastError != "" && st.State == upstreams.StateFailed {
		c.printf("error: %s\n", st.LastError)
	}
	return nil
}

// list prints what is served of a kind, with the hosts of ServiceEntries: list KIND [NAME...].
func (c *scenario) list(args []string) error {
	var only, out []string
	for _, arg := range args[1:] {
		only = append(only, namesOf(arg)...)
	}
	for _, r := range c.served() {
		if aliasOf(r.Kind()) == args[0] && (len(only) == 0 || slices.Contains(only, r.FullName())) {
			out = append(out, r.FullName()+contentOf(c.t, r))
		}
	}
	c.printf("%s\n", orNothing(out))
	return nil
}

// origin prints where what is served comes from: origin NAME...
func (c *scenario) origin(names []string) error {
	for _, name := range names {
		out := "nothing"
		for _, r := range c.served() {
			if slices.Contains(namesOf(name), r.FullName()) {
				p := r.Provenance()
				out = fmt.Sprintf("cluster %q, source %q, path %q", r.Cluster(), p.Source, strings.Join(p.Path, ","))
			}
		}
		c.printf("%s: %s\n", name, out)
	}
	return nil
}

// held prints the deletions that are held, or gives a name to their ID: held [NAME].
func (c *scenario) held(args []string) error {
	all, err := c.m.Held(c.name)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return errors.New("nothing is held")
	}
	if len(args) > 0 {
		c.ids[args[0]] = all[0].ID
		return nil
	}
	for _, d := range all[0].Deletions {
		c.printf("%s %s/%s for %v\n", d.Kind, d.Namespace, d.Name, time.Since(d.Since).Round(time.Second))
	}
	return nil
}

// explain prints what became of a resource: explain KIND NAME.
func (c *scenario) explain(args []string) error {
	kind, _, err := mirror.ParseTypeURL(typeURL(args[0]))
	if err != nil {
		return err
	}
	namespace, name, _ := strings.Cut(namesOf(args[1])[0], "/")
	traces := c.m.Trace(mirror.Key{Kind: kind, Namespace: namespace, Name: name})
	for _, t := range traces {
		c.printf("%s", t.Original.FullName())
		if t.Key != t.Original {
			c.printf(" as %s", t.Key.FullName())
		}
		for _, part := range []string{t.Reason, t.Detail, t.Refused} {
			if part != "" {
				c.printf("; %s", part)
			}
		}
		c.printf(", served: %v\n", t.Resource != nil)
	}
	if len(traces) == 0 {
		c.printf("nothing is known of it\n")
	}
	return nil
}

// leftOut prints what is not imported.
func (c *scenario) leftOut([]string) error {
	all := c.m.LeftOut()
	for _, l := range all {
		c.printf("%s %s/%s: %s; %s\n", l.Kind, l.Namespace, l.Name, l.Reason, l.Detail)
	}
	if len(all) == 0 {
		c.printf("nothing\n")
	}
	return nil
}

// journal writes to the disk, and prints what was written since the last time: journal [keys]
// [meta]. After "journal take" the changes are with a disk that can not write them; "journal
// give-back" ends that.
func (c *scenario) journal(args []string) error {
	if slices.Contains(args, "take") {
		c.disk.take()
		return nil
	}
	if slices.Contains(args, "give-back") {
		c.disk.giveBack()
		return nil
	}
	if err := c.disk.Flush(c.t.Context()); err != nil {
		return err
	}
	for _, w := range c.disk.takeWritten() {
		c.printf("%d put, %d removed", len(w.put), len(w.removed))
		if w.meta.By != "" {
			c.printf(", by %s", w.meta.By)
		}
		if w.meta.Whole {
			c.printf(", all that there is")
		}
		c.printf("\n")
		if slices.Contains(args, "keys") {
			for _, line := range append(w.removed, w.put...) {
				c.printf("  %s\n", line)
			}
		}
	}
	if slices.Contains(args, "meta") {
		m := c.disk.saved.Meta
		c.printf("synced %v, last contact %v ago, held %v, frozen %v\n", m.Synced, time.Since(m.LastContact).Round(time.Second), !m.HeldSince.IsZero(), m.Frozen != nil)
	}
	return nil
}

func orNothing(words []string) string {
	return cmp.Or(strings.Join(words, " "), "nothing")
}
