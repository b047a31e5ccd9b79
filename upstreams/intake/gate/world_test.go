package gate

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/anypb"
	"pgregory.net/rapid"

	"meshrelay/config"
	"meshrelay/mirror"
)

// A world is a gate beside a source whose wants are told key by key, without records. It checks promises about single keys
// that hold whatever has happened before. How many deletions pass the guard is for the model of the intake.
type world struct {
	t       *rapid.T
	g       *Gate
	now     time.Time
	log     []string
	wants   map[mirror.Key]want
	bare    map[mirror.Key]bool // served with the endpoints of now, which are none
	frozen  map[mirror.Key]int  // what is served in a freeze, nil without one
	saved   []map[mirror.Key]int
	open    bool // the stream has answered everything
	unswept bool // what is served was not compared with all that the source has
	// frees: the event may let deletions pass. returned, picked: a held resource has, or a part was released, in this hold.
	frees, returned, picked bool
	hold                    uint64              // its number
	first, waited           map[mirror.Key]bool // what waited when the hold began, and after the last event
	brought                 map[mirror.Key]bool // by a rollback, and the source does not have it
	quiet                   time.Duration       // how long nothing but time has passed
	contents                int
	rolled                  map[mirror.Key]bool  // a rollback of this freeze has brought it
	heard                   map[mirror.Kind]bool // a stream has answered it since the last contact
	last                    map[mirror.Key]int   // what was served before the event
}

// want is what the source wants of a key: a content, zero for none.
type want struct {
	content int
	ruled   bool // the rules leave it out
	record  bool
	unknown bool // the source has not told anything yet
}

func keys() (all []mirror.Key) {
	for _, kind := range []string{"A", "B"} {
		for _, name := range []string{"k", "l", "m"} {
			all = append(all, mirror.Key{Kind: mirror.Kind{Group: "x", Kind: kind}, Namespace: "ns", Name: name})
		}
	}
	return all
}

// resource returns a resource whose source version is its content.
func resource(key mirror.Key, content int) *mirror.Resource {
	r, err := mirror.New(mirror.Spec{
		Key: key, Source: "east", SourceVersion: "1", Labels: map[string]string{"content": fmt.Sprint(content)},
		Body: &anypb.Any{TypeUrl: "type.googleapis.com/example.Widget", Value: []byte{0x08, 1}},
	})
	if err != nil {
		panic(err)
	}
	return r
}

func (w *world) Dropped(key mirror.Key, _ *mirror.Resource) { delete(w.bare, key) }
func (w *world) Keeps(key mirror.Key)                       { w.bare[key] = true }
func (w *world) Told(Happening)                             {}

func (w *world) content(key mirror.Key) (content int) {
	if r := w.g.served.Get(key); r != nil {
		_, _ = fmt.Sscan(r.Metadata().Labels["content"], &content)
	}
	return content
}

func (w *world) all() map[mirror.Key]int {
	out := map[mirror.Key]int{}
	for _, key := range keys() {
		if c := w.content(key); c != 0 {
			out[key] = c
		}
	}
	return out
}

// obey does what an intake does with a want.
func (w *world) obey(key mirror.Key) {
	switch want := w.wants[key]; {
	case want.content != 0:
		delete(w.bare, key) // in a freeze, it has the endpoints of now
		if r := resource(key, want.content); w.g.Wants(key, r) {
			w.g.Put(key, r)
		}
	case want.ruled:
		w.g.RuleOut(key)
	default:
		w.g.Gone(key)
	}
}

// reconcile has all keys follow the source. left are those that the config leaves out from now on.
func (w *world) reconcile(left ...mirror.Key) {
	if w.g.Frozen() && left == nil {
		w.g.Recount()
	}
	ruled := left != nil
	for _, key := range keys() {
		switch {
		case w.wants[key].unknown && w.wants[key].record:
		case w.wants[key].record:
			w.obey(key)
		case left != nil && slices.Contains(left, key):
			w.g.Unwanted(key, true, w.unswept)
		case left == nil && w.content(key) != 0:
			ruled = w.g.Unwanted(key, false, w.unswept) || ruled
		}
	}
	if !w.g.Frozen() {
		w.g.Recount()
		if ruled {
			w.g.Meant()
		}
	}
}

func (w *world) say(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

func (w *world) fail(key mirror.Key, promise string) {
	w.t.Fatalf("%v, served with %d, wanted %+v, state %v: %s\n%s", key, w.content(key), w.wants[key], w.g.State(key), promise, strings.Join(w.log, "\n"))
}

// check holds the gate to its promises after an event.
func (w *world) check() {
	h, holding := w.g.Hold()
	expired := !w.g.Contact().Has && w.g.settings.Staleness.ExpireAfter > 0 && w.now.Sub(w.g.Contact().Since) >= w.g.settings.Staleness.ExpireAfter.D()
	waits := map[mirror.Key]bool{}
	for key := range w.waited {
		w.returned = w.returned || w.wants[key].content != 0
	}
	for _, key := range keys() {
		if w.frozen != nil && w.unswept && w.wants[key] == (want{}) && !w.brought[key] {
			w.wants[key] = want{unknown: true} // a new source may still have it
		}
		c, want, state := w.content(key), w.wants[key], w.g.State(key)
		if state.Waits() {
			waits[key] = true
		}
		switch {
		case want.unknown:
		case want.content != 0 && w.bare[key]:
			w.fail(key, "the source has it, so it keeps its endpoints")
		case want.content == 0 && c != 0 && !w.bare[key] && (w.frozen != nil || state == Held):
			w.fail(key, "the source does not have it, so it has no endpoints")
		}
		switch {
		case w.frozen != nil && c != w.frozen[key]:
			w.fail(key, "it is frozen")
		case w.frozen == nil && state != Follows && (c == 0 || !state.Waits()):
			w.fail(key, "only what is served and waits has an entry")
		case want.unknown && w.frozen == nil && !expired && !w.g.Withholds(key.Kind) && c != w.last[key] && (want.record || !w.rolled[key]):
			w.fail(key, "nobody has said anything of it")
		case want.unknown:
		case w.frozen != nil && (state != Follows) != (c != want.content):
			w.fail(key, "what differs from the source is counted")
		case w.frozen != nil:
		case expired && c != 0 && !w.heard[key.Kind]:
			w.fail(key, "it has expired")
		case expired || w.g.Withholds(key.Kind):
		case want.content != c && want.content != 0:
			w.fail(key, "the source has it")
		case want.ruled && c != 0:
			w.fail(key, "the rules leave it out")
		case state.Waits() != (c != 0 && want.content == 0):
			w.fail(key, "what is gone and served waits")
		case c == 0 && w.last[key] != 0 && !w.frees && !want.ruled && w.g.settings.Guard.Percent == 0:
			w.fail(key, "the guard holds all that is gone")
		case c == 0 && w.waited[key] && w.hold != 0 && !w.frees && !w.returned && !want.ruled:
			w.fail(key, "it is held, and nothing has returned")
		case c != 0 && state.Waits() && w.g.isOff() && !w.g.patient():
			w.fail(key, "the guard is off")
		case state.Waits() && w.returned && !w.picked && w.open && w.quiet > 3*time.Minute && w.g.tooMany() == "":
			w.fail(key, "the rest of a hold goes when the guard would let it pass")
		}
	}
	n, _ := w.g.Waiting()
	if n != len(waits) || w.g.Size() != len(w.all()) || holding && n == 0 {
		w.t.Fatalf("%d wait, %d are counted, size %d, holding %v:\n%s", len(waits), n, w.g.Size(), holding, strings.Join(w.log, "\n"))
	}
	if !holding {
		h.Number = 0
	}
	if h.Number != w.hold {
		w.hold, w.first, w.returned, w.picked = h.Number, maps.Clone(waits), false, false
	}
	maps.DeleteFunc(w.first, func(key mirror.Key, _ bool) bool { return !waits[key] })
	w.waited, w.frees, w.last = waits, false, w.all()
}

func newWorld(t *rapid.T, rows []row) *world {
	w := &world{t: t, now: time.Unix(1_000_000, 0), wants: map[mirror.Key]want{}, bare: map[mirror.Key]bool{}, brought: map[mirror.Key]bool{}, rolled: map[mirror.Key]bool{}, heard: map[mirror.Kind]bool{}, unswept: true}
	guards := []config.Guard{{Percent: 100, Empty: config.EmptyPass}, {Empty: config.EmptyPass}, {Percent: 60, Empty: config.EmptyPass}}
	s := Settings{Guard: rapid.SampledFrom(guards).Draw(t, "guard")}
	s.Guard.HoldFor = config.OpenEnded(10 * time.Minute)
	s.Staleness.StaleAfter = config.Duration(time.Minute)
	s.Staleness.ExpireAfter = config.OpenEnded(rapid.SampledFrom([]time.Duration{0, 5 * time.Second, time.Hour}).Draw(t, "expires"))
	w.g = New(mirror.NewStore(), s, w)
	w.g.rows = newTable(rows)
	w.g.SetNow(w.now)
	var restored []*mirror.Resource
	for _, key := range keys() {
		w.contents++
		restored = append(restored, resource(key, w.contents))
		w.wants[key] = want{unknown: true}
	}
	w.say("guard %+v, expires %v", s.Guard, s.Staleness.ExpireAfter.D())
	w.g.Begin(restored)
	w.last = w.all()
	w.g.RestoreContact(w.now, false)
	w.check()
	return w
}

// change changes what the source wants of a key.
func (w *world) change(key mirror.Key, how int) {
	was := w.wants[key]
	switch how {
	case 0, 1: // the source has it
		w.contents++
		w.wants[key] = want{content: w.contents, record: true}
	case 2: // what it is served with
		if c := w.content(key); c != 0 {
			w.wants[key] = want{content: c, record: true}
		}
	case 3:
		w.wants[key] = want{ruled: true, record: true}
	default: // gone; what was left out before, goes without the guard
		w.wants[key] = want{ruled: was.ruled && w.content(key) != 0}
	}
	w.brought[key] = w.brought[key] && !w.wants[key].record
}

// answer has a new stream tell everything.
func (w *world) answer(how func(i int) int) {
	w.lose()
	w.g.Open()
	w.g.BeginUpdate()
	for i, key := range keys() {
		if h := how(i); h < 6 || w.wants[key].unknown {
			w.change(key, h)
		}
		w.obey(key)
	}
	h, _ := w.g.Hold()
	w.frees = h.Ends && h.Left == 0 // a new stream repeats everything
	w.g.EndUpdate(false, false)
	w.g.Synced, w.open, w.heard = true, true, map[mirror.Kind]bool{}
	if back := w.g.Regain(); back || w.unswept {
		w.unswept = false
		w.reconcile()
		w.g.EndUpdate(false, false)
	}
}

func (w *world) lose() {
	w.g.Lose()
	w.open = false
}

// do does one thing that happens to an upstream. What a and b mean depends on what happens.
func (w *world) do(what string, a, b int) {
	w.say("%s %d %d", what, a, b)
	w.quiet = 0
	key := keys()[a%6]
	switch what {
	case "change", "changes": // of one key, or of most
		if !w.open {
			return
		}
		w.g.BeginUpdate()
		for i, key := range keys() {
			if (what == "changes") != (i == a%6) {
				w.change(key, b)
				w.obey(key)
			}
		}
		w.g.EndUpdate(false, false)
	case "answer":
		w.answer(func(i int) int { return (i*a + b) % 12 })
	case "half": // a new stream tells one kind, and nobody knows yet what becomes of the rest that the source did not have
		w.lose()
		w.g.Open()
		w.g.BeginUpdate()
		w.heard[key.Kind] = true
		back := false
		for i, k := range keys() {
			switch {
			case k.Kind == key.Kind:
				w.change(k, (i*a+b)%12)
				w.obey(k)
				back = w.g.Freshen(k.Kind) || back
			case w.wants[k].content == 0 && !w.g.State(k).Waits() && !w.wants[k].ruled == (b%2 == 0):
				w.wants[k] = want{unknown: true, record: true, ruled: w.wants[k].ruled && w.frozen != nil}
			}
		}
		if w.g.EndUpdate(true, false); back && w.frozen == nil {
			w.reconcile()
			w.g.EndUpdate(true, false)
		}
	case "lose":
		w.lose()
	case "wait":
		w.quiet = []time.Duration{time.Second, 11 * time.Second, 4 * time.Minute, 11 * time.Minute, 2 * time.Hour}[a%5]
		w.now = w.now.Add(w.quiet)
		w.g.SetNow(w.now)
	case "freeze":
		if w.frozen == nil {
			w.freeze(w.all())
		}
	case "save":
		w.saved = append(w.saved, w.all())
	case "rollback":
		if len(w.saved) > 0 {
			w.rollBack(w.saved[a%len(w.saved)])
		}
	case "thaw":
		if w.frozen == nil {
			return
		}
		w.frozen, w.frees = nil, w.g.settings.Guard.Percent > 0
		w.g.Thaw()
		w.reconcile()
		for key, told := range w.wants {
			told.ruled = told.ruled && !told.unknown // the thaw was its time to go
			w.wants[key] = told
		}
		w.g.EndUpdate(!w.open, false)
	case "leave out": // the config does, and another source begins
		w.lose()
		w.g.Unopen()
		if w.unswept = true; !w.g.State(key).Waits() && !w.wants[key].unknown {
			w.wants[key] = want{ruled: true}
			w.g.BeginUpdate()
			w.reconcile(key)
			w.g.EndUpdate(true, false)
		}
	case "release":
		if w.g.Holding() {
			w.frees, w.picked = true, true
			w.g.Release(func(k mirror.Key) bool { return b%2 == 0 || k == key })
			if b%2 == 0 && w.g.Holding() {
				w.fail(key, "all was released")
			}
		}
	case "repeat":
		if h, _ := w.g.Hold(); h.Asked.IsZero() {
			return
		}
		w.frees = true
		w.g.Repeated()
		for key := range w.first {
			if w.waited[key] && w.content(key) != 0 {
				w.fail(key, "the time of its hold is over, and the source has repeated it")
			}
		}
	}
	w.g.ExpireTimers()
	w.check()
}

// freeze begins a freeze of what is served from now on. What has expired before is not waited for.
func (w *world) freeze(served map[mirror.Key]int) {
	for key, told := range w.wants {
		if w.frozen == nil && told.content != 0 && w.content(key) == 0 {
			w.wants[key] = want{unknown: true}
		}
	}
	if w.frozen == nil {
		clear(w.brought)
		clear(w.rolled)
	}
	w.frozen = served
	w.g.Freeze()
}

func (w *world) rollBack(to map[mirror.Key]int) {
	w.freeze(to)
	for _, key := range keys() {
		switch c := to[key]; {
		case c != 0:
			if w.content(key) == 0 {
				w.rolled[key] = true // the thaw leaves no mix of two states
				if !w.wants[key].record {
					w.wants[key], w.brought[key] = want{}, true
				}
			}
			if _, old, _ := w.g.Put(key, resource(key, c)); old == nil {
				w.g.RollBack(key)
			}
			delete(w.bare, key)
		case w.content(key) != 0:
			w.g.Drop(key)
		}
	}
	w.g.Settle()
	w.reconcile()
	w.g.EndUpdate(!w.open, false)
}

type move struct {
	what string
	a, b int
}

// scripts are beginnings that are too rare at random.
func scripts() [][]move {
	told := move{"answer", 0, 0}
	return [][]move{
		{},
		{told, {"change", 0, 4}, {"wait", 2, 0}, {"change", 1, 4}, {"wait", 3, 0}, {"repeat", 0, 0}, {"wait", 3, 0}, {"repeat", 0, 0}},
		{told, {"freeze", 0, 0}, {"leave out", 0, 0}, {"thaw", 0, 0}},
		{told, {"save", 0, 0}, {"changes", 0, 4}, {"freeze", 0, 0}, {"rollback", 0, 0}, {"leave out", 0, 0}, {"thaw", 0, 0}},
		{told, {"save", 0, 0}, {"changes", 0, 3}, {"rollback", 0, 0}, {"leave out", 1, 0}, {"change", 0, 0}, {"thaw", 0, 0}},
		{told, {"freeze", 0, 0}, {"change", 0, 0}, {"change", 0, 4}, {"leave out", 1, 0}, {"thaw", 0, 0}},
	}
}

// walk is a walk through a world whose gate has these transitions.
func walk(t *rapid.T, rows []row) {
	moves := []string{
		"change", "change", "change", "change", "changes", "changes", "answer", "answer", "half", "half", "lose", "wait", "wait", "wait", "freeze", "save",
		"rollback", "rollback", "thaw", "thaw", "leave out", "leave out", "release", "repeat", "repeat",
	}
	one := rapid.Custom(func(t *rapid.T) move {
		n := rapid.IntRange(0, 59)
		return move{rapid.SampledFrom(moves).Draw(t, "what"), n.Draw(t, "a"), n.Draw(t, "b")}
	})
	w := newWorld(t, rows)
	for _, mv := range slices.Concat(scripts()[rapid.IntRange(0, len(scripts())-1).Draw(t, "script")], rapid.SliceOfN(one, 20, 60).Draw(t, "moves")) {
		w.do(mv.what, mv.a, mv.b)
	}
}
