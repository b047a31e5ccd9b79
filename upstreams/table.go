package upstreams

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/encoding/protowire"

	"meshrelay/adsclient"
	"meshrelay/config"
	"meshrelay/mirror"
)

// table is what a server has said, by type URL and name, and the gate to the store that it
// is folded into. A kind's API versions are its spellings: their answers are united by
// name, the newest version first (PROTOCOL C1).
type table struct {
	importer *importer
	gate     *gate
	limits   config.Limits
	// resources and bytes are what the records hold.
	resources, bytes int
	// discovery follows the endpoints of services; nil when they are not to be discovered.
	discovery *discovery
	// relay tells that the present server is a relay, and that what it tells of the way of a
	// resource is believed.
	relay bool
	// panics counts the panics over single resources, and panicked is told of each. fault,
	// which only tests set, panics.
	panics   uint64
	panicked func(name string, p *mirror.Panic)
	fault    func(r *mirror.Resource)

	byURL  map[string]*spelling
	byKind map[mirror.Kind][]*spelling // newest version first
	// awaited are the type URLs of each kind that the present stream has not answered.
	// Until there are none, names that no spelling has any more wait in leaving: after an
	// istiod was rolled back, say, the newest spelling is answered with nothing before an
	// older one brings all that it had.
	awaited map[mirror.Kind]map[string]bool
	leaving map[mirror.Kind]map[string]bool
	// patient are the kinds of which one spelling has just become empty while there are
	// others: a server that moves to another version may fill that a moment later. later
	// sees to it that they are settled after a while.
	patient map[mirror.Kind]bool
	later   func(mirror.Kind)
}

// spelling is one type URL.
type spelling struct {
	kind       mirror.Kind
	typeURL    string
	rank       int
	answered   bool
	first      bool // the response at hand is the first on its stream
	byName     map[string]*record
	generation uint32
	dropped    [reasons]int
	// refused says what is wrong with what was received last, by name; moreRefused counts
	// what there would be more than maxKeptRefused.
	refused     map[string]string
	moreRefused int
	// panicked are the elements, by name, over which the code has panicked. They are not tried
	// again while they stay as they are.
	panicked map[string]xxh3.Uint128
}

// record is one name of one spelling.
type record struct {
	hash     xxh3.Uint128     // of the element as received
	resource *mirror.Resource // last good content, as it is held here; nil when there is none, or when it is left out
	// original is the content as received, and stamped, when that has been reshaped.
	original   *mirror.Resource
	version    string // that the server gave, on delta streams
	at         int64  // when the content came, in seconds since the epoch
	generation uint32 // of the response that it was last part of; compared for equality only
	relayed    bool   // hash was a relay's: what it told of its way is believed
	dropped    Reason
	detail     string // dropped, in a sentence
}

var (
	errDuplicate = errors.New("the name comes twice in one response; the first is kept")
	errNoName    = errors.New("the element has no name")
	errNoMCP     = errors.New("the element is no istio.mcp.v1alpha1.Resource")
)

// unnamedElement is the name under which elements are refused whose own can not be
// read. No resource is called so.
const unnamedElement = "(an element without a readable name)"

func newTable(im *importer, gate *gate, limits config.Limits) table {
	return table{
		importer: im, gate: gate, limits: limits,
		byURL: map[string]*spelling{}, byKind: map[mirror.Kind][]*spelling{},
		awaited: map[mirror.Kind]map[string]bool{}, leaving: map[mirror.Kind]map[string]bool{},
		patient: map[mirror.Kind]bool{}, later: func(mirror.Kind) {}, panicked: func(string, *mirror.Panic) {},
	}
}

// begin says that a new stream has been asked for these types.
func (t *table) begin(typeURLs []string) {
	clear(t.awaited)
	for _, url := range typeURLs {
		kind, _, err := mirror.ParseTypeURL(url)
		if err != nil {
			continue
		}
		if t.awaited[kind] == nil {
			t.awaited[kind] = map[string]bool{}
		}
		t.awaited[kind][url] = true
	}
}

// arrive says that the present stream answers a type.
func (t *table) arrive(sp *spelling) {
	sp.first = t.awaited[sp.kind][sp.typeURL]
	delete(t.awaited[sp.kind], sp.typeURL)
	sp.answered = true
}

// settle lets the names go that waited for the last spelling of their kind.
func (t *table) settle(kind mirror.Kind) {
	names := t.leaving[kind]
	if len(names) == 0 || t.waits(kind) {
		return
	}
	delete(t.leaving, kind)
	t.fold(kind, slices.Collect(maps.Keys(names)))
}

// syncing reports whether the present stream has not answered every type.
func (t *table) syncing() bool {
	for _, urls := range t.awaited {
		if len(urls) > 0 {
			return true
		}
	}
	return false
}

// unsettled reports whether it is too early to judge by what is gone how much that is: not
// every type has been answered, or a kind that was answered with nothing may yet be filled.
func (t *table) unsettled() bool { return len(t.patient) > 0 || t.syncing() }

// waits reports whether it is too early to say that a name of a kind is gone.
func (t *table) waits(kind mirror.Kind) bool { return len(t.awaited[kind]) > 0 || t.patient[kind] }

// settleLate ends the patience with a kind.
func (t *table) settleLate(kind mirror.Kind) {
	delete(t.patient, kind)
	t.settle(kind)
}

func (t *table) spelling(kind mirror.Kind, version, typeURL string) *spelling {
	if sp := t.byURL[typeURL]; sp != nil {
		return sp
	}
	sp := &spelling{kind: kind, typeURL: typeURL, rank: 1 << 20, byName: map[string]*record{}, refused: map[string]string{}, panicked: map[string]xxh3.Uint128{}}
	if info, ok := mirror.LookupKind(kind); ok {
		if i := slices.Index(info.Versions, version); i >= 0 {
			sp.rank = i
		}
	}
	t.byURL[typeURL] = sp
	all := append(t.byKind[kind], sp)
	slices.SortStableFunc(all, func(a, b *spelling) int { return a.rank - b.rank })
	t.byKind[kind] = all
	return sp
}

func (t *table) answered(typeURL string) bool {
	sp := t.byURL[typeURL]
	return sp != nil && sp.answered
}

// replace makes a spelling what a complete response says. Elements that are as they
// were cost a hash and a look-up; nothing is decoded or allocated for them.
func (t *table) replace(sp *spelling, resp *adsclient.Response) (out outcome) {
	sp.generation++
	clear(sp.refused)
	sp.moreRefused = 0
	seen, unnamed := 0, 0
	var changed []string
	// late are the numbers of the elements for which there is no room before what is gone is gone.
	var late []int32
	at := int32(-1)
	if len(sp.byName) == 0 {
		sp.byName = make(map[string]*record, resp.Room())
		changed = make([]string, 0, resp.Room())
	}
	for raw := range resp.Resources(t.limits.MaxResourceBytes) {
		at++
		name, err := peekName(sp.kind, raw.Peek())
		rec := sp.byName[string(name)]
		if err == nil && rec == nil && !isMCP(sp.kind, raw.Peek()) {
			err = errNoMCP // and what looked like its name need not be one
		}
		if err != nil {
			unnamed++
			sp.refuse(unnamedElement, err, &out)
			continue
		}
		if err := t.room(sp, rec, name, raw.Size); err != nil {
			if rec == nil && errors.Is(err, errFull) {
				late = append(late, at)
				continue
			}
			sp.refuse(string(name), err, &out)
			if rec != nil && rec.generation != sp.generation {
				seen++
				rec.hash = xxh3.Uint128{}
				rec.generation = sp.generation
			}
			continue
		}
		switch {
		case rec == nil:
			rec = &record{}
			seen++
			if full, differs := t.enter(sp, rec, name, raw, &out); differs {
				changed = append(changed, full)
			}
		case rec.generation == sp.generation:
			sp.refuse(string(name), errDuplicate, &out)
		case rec.hash == xxh3.Hash128(raw.Any) && rec.good() && rec.relayed == t.relay:
			seen++
			rec.say(raw.Version)
		default:
			seen++
			full := string(name)
			if t.accept(sp, rec, full, raw, &out) {
				changed = append(changed, full)
			}
		}
		rec.generation = sp.generation
	}
	out.changed = t.fold(sp.kind, changed)
	defer func() { out.changed += t.admit(sp, resp, late, &out) }()
	if seen == len(sp.byName) {
		return out
	}
	if unnamed > 0 {
		// Whose names could not be read can not be told from what is gone.
		out.unread = true
		out.refuse(sp.typeURL, fmt.Errorf("%d elements have no readable name: nothing is removed on account of this response", unnamed))
		return out
	}
	if seen == 0 && len(late) == 0 && !sp.first && len(t.byKind[sp.kind]) > 1 && !t.patient[sp.kind] {
		t.patient[sp.kind] = true
		t.later(sp.kind)
	}
	var gone []string
	for name, rec := range sp.byName {
		if rec.generation != sp.generation {
			if t.forget(sp, name, rec) {
				gone = append(gone, name)
			}
		}
	}
	out.gone = len(gone)
	t.fold(sp.kind, gone)
	return out
}

// admit takes in new elements, whose numbers late has, as far as there is room for them.
func (t *table) admit(sp *spelling, resp *adsclient.Response, late []int32, out *outcome) (differ int) {
	var changed []string
	at := int32(-1)
	for raw := range resp.Resources(t.limits.MaxResourceBytes) {
		if len(late) == 0 {
			break
		}
		if at++; at != late[0] {
			continue
		}
		late = late[1:]
		name, err := peekName(sp.kind, raw.Peek())
		if err != nil {
			continue // it had a name before
		}
		rec := sp.byName[string(name)]
		if err := t.room(sp, rec, name, raw.Size); rec == nil && err != nil {
			sp.refuse(string(name), err, out)
			continue
		}
		if rec != nil {
			sp.refuse(string(name), errDuplicate, out)
			continue
		}
		rec = &record{generation: sp.generation}
		if full, differs := t.enter(sp, rec, name, raw, out); differs {
			changed = append(changed, full)
		}
	}
	return t.fold(sp.kind, changed)
}

// patch applies a delta response to a spelling.
func (t *table) patch(sp *spelling, resp *adsclient.Response) (out outcome) {
	var changed, gone []string
	if len(sp.byName) == 0 {
		sp.byName = make(map[string]*record, resp.Room())
		changed = make([]string, 0, resp.Room())
	}
	seen := map[string]bool{}
	for raw := range resp.Resources(t.limits.MaxResourceBytes) {
		name, err := peekName(sp.kind, raw.Peek())
		if err == nil && sp.kind != mirror.MeshConfig && string(name) != string(raw.Name) {
			err = fmt.Errorf("the element is named %q and the resource in it %q", raw.Name, name)
		}
		if err != nil {
			sp.refuse(string(raw.Name), err, &out)
			continue
		}
		full := string(name)
		if seen[full] {
			sp.refuse(full, errDuplicate, &out)
			continue
		}
		rec := sp.byName[full]
		if err := t.room(sp, rec, name, raw.Size); err != nil {
			sp.refuse(full, err, &out)
			if rec != nil {
				rec.hash, seen[full] = xxh3.Uint128{}, true
			}
			continue
		}
		seen[full] = true // no name for which there is no room: there may be millions
		if rec == nil {
			delete(sp.refused, full)
			if full, differs := t.enter(sp, &record{}, name, raw, &out); differs {
				changed = append(changed, full)
			}
			continue
		}
		if rec.good() && rec.hash == xxh3.Hash128(raw.Any) && rec.relayed == t.relay {
			// An istiod's delta sends everything again on each push.
			rec.say(raw.Version)
			delete(sp.refused, full)
			continue
		}
		delete(sp.refused, full)
		if t.accept(sp, rec, full, raw, &out) {
			changed = append(changed, full)
		}
	}
	for name := range resp.Removed() {
		if sp.kind == mirror.MeshConfig {
			name = []byte(mirror.MeshConfigName)
		}
		if rec := sp.byName[string(name)]; rec != nil && !seen[string(name)] && t.forget(sp, string(name), rec) {
			gone = append(gone, string(name))
		}
		delete(sp.refused, string(name))
	}
	out.changed, out.gone = t.fold(sp.kind, changed), len(gone)
	t.fold(sp.kind, gone)
	return out
}

// peekName returns the name of an element. One without a name is an error: it may be
// what is left of any.
func peekName(kind mirror.Kind, element []byte) ([]byte, error) {
	name, err := mirror.PeekName(kind, element)
	if err == nil && len(name) == 0 {
		err = errNoName
	}
	return name, err
}

// isMCP reports whether an element is of the type in which PeekName looks for a name.
func isMCP(kind mirror.Kind, element []byte) bool {
	if kind == mirror.MeshConfig {
		return true
	}
	var typeURL []byte
	for len(element) > 0 {
		num, typ, n := protowire.ConsumeTag(element)
		if n < 0 {
			return false
		}
		m := protowire.ConsumeFieldValue(num, typ, element[n:])
		if m < 0 {
			return false
		}
		if num == 1 && typ == protowire.BytesType {
			typeURL, _ = protowire.ConsumeBytes(element[n:])
		}
		element = element[n+m:]
	}
	return bytes.HasSuffix(typeURL, []byte("/istio.mcp.v1alpha1.Resource"))
}

// enter makes a record of a name that is new. Record and resource share the name, unless
// it is another here.
func (t *table) enter(sp *spelling, rec *record, name []byte, raw adsclient.RawResource, out *outcome) (full string, differs bool) {
	full = string(name)
	differs = t.accept(sp, rec, full, raw, out)
	if rec.resource != nil && rec.resource.FullName() == full {
		full = rec.resource.FullName()
	}
	sp.byName[full] = rec
	return full, differs
}

// say takes over the version that the server gives the content: none on a SotW stream.
// A version of earlier content would, on resuming, claim what is not held.
func (r *record) say(version []byte) {
	if string(version) != r.version {
		r.version = string(version)
	}
}

// good reports whether what was received last was accepted.
func (r *record) good() bool { return r.hash != xxh3.Uint128{} }

func (sp *spelling) refuse(name string, err error, out *outcome) {
	if len(out.bad) < maxNamed {
		out.refuse(sp.typeURL+" "+abbreviate(name), err)
	} else {
		out.badTotal++ // nothing is formatted: there may be millions
	}
	if len(name) > maxKeptName {
		name = abbreviate(name)
	}
	if _, known := sp.refused[name]; !known && len(sp.refused) >= maxKeptRefused {
		sp.moreRefused++
		return
	}
	reason := err.Error()
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "") + "…"
	}
	sp.refused[name] = reason
}

// maxKeptRefused bounds the refused names of one spelling that are remembered.
const maxKeptRefused = 10_000

// maxReason bounds, in bytes, what is kept of why a resource is refused.
const maxReason = 512

func abbreviate(s string) string {
	if len(s) > 128 {
		return s[:128] + "…"
	}
	return s
}

// forget removes a record and reports whether anything was held on its account: what was
// left out may not take with it what another name has put in the same place.
func (t *table) forget(sp *spelling, name string, rec *record) (held bool) {
	t.unfollow(rec, name)
	t.account(rec.size(), 0)
	sp.countDropped(rec, imported)
	delete(sp.byName, name)
	delete(sp.refused, name)
	delete(sp.panicked, name)
	return rec.resource != nil
}

// countDropped notes why a record is left out now.
func (sp *spelling) countDropped(rec *record, reason Reason) {
	sp.dropped[rec.dropped]--
	sp.dropped[reason]++
	rec.dropped = reason
}

// fold brings the store to what the kind's spellings say of names, and returns how
// many of them are new or changed for clients. What no spelling has leaves the store once
// the present stream has answered all of them. The caller is within begin and end, or
// restate and finish, of the gate.
func (t *table) fold(kind mirror.Kind, names []string) (differ int) {
	for _, name := range names {
		if t.foldOne(kind, name) {
			differ++
		}
	}
	return differ
}

// foldOne is fold for one name. A panic leaves what is served under it as it is.
func (t *table) foldOne(kind mirror.Kind, name string) (differs bool) {
	defer func() {
		if p := mirror.Recovered(recover()); p != nil {
			_ = t.costs(name, p) // there is no response any more to refuse it in
			differs = false
		}
	}()
	var best *record
	var from *spelling
	for _, sp := range t.byKind[kind] {
		if rec := sp.byName[name]; rec != nil && rec.resource != nil {
			best, from = rec, sp
			break
		}
	}
	if best == nil && t.waits(kind) {
		if t.leaving[kind] == nil {
			t.leaving[kind] = map[string]bool{}
		}
		t.leaving[kind][name] = true
		if key, ok := keyOf(kind, name); ok {
			t.gate.waits(t.importer.keyOf(key))
		}
		return false
	}
	if best == nil {
		if key, ok := keyOf(kind, name); ok {
			t.gate.remove(t.importer.keyOf(key))
		}
		return false
	}
	stored, changed := t.gate.put(best.kept(from.typeURL))
	before := best.size()
	best.resource = stored
	t.account(before, best.size())
	return changed
}

func keyOf(kind mirror.Kind, name string) (mirror.Key, bool) {
	if kind == mirror.MeshConfig {
		return mirror.Key{Kind: kind, Name: mirror.MeshConfigName}, true
	}
	namespace, name, err := mirror.ParseFullName(name)
	return mirror.Key{Kind: kind, Namespace: namespace, Name: name}, err == nil
}

// retire forgets the other spellings of a kind: the server is a relay, which was
// asked for one only, and what another server said under the others is void.
func (t *table) retire(kind mirror.Kind, current *spelling) {
	var gone []string
	for _, sp := range t.byKind[kind] {
		if sp == current {
			continue
		}
		for name, rec := range sp.byName {
			if t.forget(sp, name, rec) {
				gone = append(gone, name)
			}
		}
		clear(sp.refused)
		sp.moreRefused = 0
	}
	t.fold(kind, gone)
}

// versions returns what is held of a spelling, with the versions that the server
// gave.
func (t *table) versions(typeURL string) map[string]string {
	sp := t.byURL[typeURL]
	if sp == nil || len(sp.byName) == 0 || sp.kind == mirror.MeshConfig {
		return nil // an istiod's MeshConfig has no name to speak of it by
	}
	out := make(map[string]string, len(sp.byName))
	for name, rec := range sp.byName {
		version := rec.version
		if !rec.good() {
			version = "" // ask for it again
		}
		out[name] = version
	}
	return out
}

func (t *table) refusals() (listed []Refusal, total int) {
	for _, url := range slices.Sorted(maps.Keys(t.byURL)) {
		sp := t.byURL[url]
		total += len(sp.refused) + sp.moreRefused
		for _, name := range slices.Sorted(maps.Keys(sp.refused)) {
			if len(listed) == maxRefused {
				break
			}
			listed = append(listed, Refusal{Resource: sp.typeURL + " " + abbreviate(name), Reason: sp.refused[name]})
		}
	}
	return listed, total
}

// droppedCounts returns how many resources are left out, by reason.
func (t *table) droppedCounts() map[string]int {
	var all [reasons]int
	for _, sp := range t.byURL {
		for reason, n := range sp.dropped {
			all[reason] += n
		}
	}
	return droppedByName(all)
}

func droppedByName(counts [reasons]int) map[string]int {
	out := map[string]int{}
	for reason := imported + 1; reason < reasons; reason++ {
		if n := counts[reason]; n > 0 {
			out[reason.String()] = n
		}
	}
	return out
}
