package intake_test

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/proto"
	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/internal/testing/fakexds"
	"meshrelay/upstreams/intake/records"
)

// This file is the source of the worlds of the model: what it has, and how it tells that.

const (
	newEntries = "networking.istio.io/v1/ServiceEntry"
	oldEntries = "networking.istio.io/v1beta1/ServiceEntry"
	gateways   = "networking.istio.io/v1/Gateway"
)

var (
	kinds   = []string{"ServiceEntry", "Gateway"}
	urls    = []string{newEntries, oldEntries, gateways}
	nameSet = map[string][]string{
		newEntries: {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"},
		oldEntries: {"a", "b", "c", "x", "y", "z"},
		gateways:   {"p", "q", "r", "s", "t"},
	}
)

func scopeOf(url string) records.Scope {
	s, err := records.TypeScope(url)
	if err != nil {
		panic(err)
	}
	return s
}

var encoded = map[string][]byte{}

// raw returns a resource as an istiod sends it. Without content, it does not decode.
func raw(url, name, content string) []byte {
	id := url + name + "=" + content
	if b := encoded[id]; b != nil {
		return b
	}
	var body proto.Message = &networking.ServiceEntry{Hosts: []string{name + ".example"}}
	if url == gateways {
		body = &networking.Gateway{Selector: map[string]string{"app": name}}
	}
	b, err := proto.Marshal(fakexds.MCP("ns/"+name, body, func(r *mcp.Resource) {
		r.Metadata.Labels = map[string]string{"content": content}
		if content == "" {
			r.Body.Value = []byte{0x0a, 0xff}
		}
	}).Any)
	if err != nil {
		panic(err)
	}
	encoded[id] = b
	return b
}

// mutate changes what the source has of a scope.
func (w *world) mutate(url string, b, c int) {
	has, names := w.truth[url], nameSet[url]
	set := func(name string) { w.contents++; has[name] = fmt.Sprint(w.contents) }
	lose := func(n int) {
		for i := range names {
			if name := names[(i+c)%len(names)]; n > 0 && has[name] != "" {
				delete(has, name)
				n--
			}
		}
	}
	switch b % 12 {
	case 0, 1:
		lose(1)
	case 2:
		lose(2)
	case 3:
		lose(len(has) - 1)
	case 4:
		lose(len(has))
	case 5:
		for _, name := range names {
			set(name)
		}
	case 6, 7: // some return
		for i := range 1 + c%len(names) {
			if name := names[(i+c)%len(names)]; has[name] == "" {
				set(name)
			}
		}
	case 8:
		set(names[c%len(names)])
	case 9:
		// Docs do not tell which content is the last good one of a name that two versions have.
		if name := names[c%len(names)]; !slices.Contains([]string{"a", "b", "c"}, name) {
			has[name] = "bad"
		}
	case 10:
		lose(len(has) / 2)
	}
}

func goodOnly(has map[string]string) map[string]string {
	out := map[string]string{}
	for name, c := range has {
		if out[name] = c; c == "bad" {
			out[name] = ""
		}
	}
	return out
}

func (w *world) update(url string, repeats bool, c int) records.Update {
	for name, content := range w.truth[url] {
		// Docs do not tell which content is the last good one of a name that was frozen through a restart.
		if content == "bad" && w.untyped[key{w.scopes[url].Kind.Kind, name}] {
			w.contents++
			w.truth[url][name] = fmt.Sprint(w.contents)
		}
	}
	scope, has := w.scopes[url], goodOnly(w.truth[url])
	u := records.Update{Scope: scope, Complete: !w.delta}
	var removed []string
	tells := has
	if w.delta && !repeats {
		tells = map[string]string{}
		old := w.told[url]
		if old == nil { // it resumes
			old = w.in.Records().Versions(records.Scope{Name: url})
			old = maps.Collect(func(yield func(string, string) bool) {
				for name, v := range old {
					if !yield(strings.TrimPrefix(name, "ns/"), v) {
						return
					}
				}
			})
		}
		for name, content := range has {
			if was, is := old[name]; !is || was != content || content == "" {
				tells[name] = content
			}
		}
		for name := range old {
			if _, is := has[name]; !is {
				removed = append(removed, name)
			}
		}
		slices.Sort(removed)
	} else if w.delta {
		u.Complete = true // a new subscription to the wildcard
	}
	names := slices.Sorted(maps.Keys(tells))
	switch {
	case w.parted[url]: // the rest of an answer
		names = slices.DeleteFunc(names, func(name string) bool { return w.m.scopes[url].part[name] })
		delete(w.parted, url)
	case u.Complete && c%5 == 0 && len(names) > 1 && !repeats:
		names, u.Part, w.parted[url] = names[:len(names)/2], true, true
	}
	if c%2 == 0 { // an istiod tells it in any order
		slices.Reverse(names)
	}
	now := map[string]string{}
	for _, name := range names {
		now[name] = tells[name]
	}
	if w.told[url] = maps.Clone(has); u.Part {
		delete(w.told, url)
	}
	u.Room = len(names)
	marked := u.Complete && !u.Part && c%3 > 0
	element := func(name string) records.Element {
		e := records.Element{Name: []byte("ns/" + name), Raw: raw(url, name, now[name])}
		if w.delta {
			e.Version = []byte(now[name])
		}
		if marked {
			e.Mark = xxh3.Hash(e.Raw) | 1
		}
		return e
	}
	u.Elements = func(_ int, known records.Known) iter.Seq[records.Element] {
		return func(yield func(records.Element) bool) {
			for _, name := range names {
				if e := element(name); known != nil && known(e.Mark, len(e.Raw)) {
					continue
				} else if !yield(e) {
					return
				}
			}
		}
	}
	if marked {
		u.Marks = func(yield func(uint64, int) bool) {
			for _, name := range names {
				if e := element(name); !yield(e.Mark, len(e.Raw)) {
					return
				}
			}
		}
	}
	if len(removed) > 0 {
		u.Removed = func(yield func([]byte) bool) {
			for _, name := range removed {
				if !yield([]byte("ns/" + name)) {
					return
				}
			}
		}
	}
	words := []string{}
	for _, name := range names {
		words = append(words, name+"="+now[name])
	}
	w.say("answers %s, complete %v, part %v: %s, removed %v", url, u.Complete, u.Part, words, removed)
	w.m.advance(w.now)
	w.m.answered(w.m.scope(url, scope.Kind.Kind, scope.Rank), u.Complete, u.Part, now, removed)
	if !u.Part {
		w.repeated(url, u.Complete, slices.Concat(names, removed)...)
	}
	return u
}
