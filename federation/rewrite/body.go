package rewrite

import (
	"errors"

	"meshrelay/internal/wire"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// A role is what a field names, and so how its values follow the rules. It has either text
// or fields.
type role struct {
	// sees are the effects that can change a value.
	sees effect
	// text maps a string of the message m.
	text func(s *scope, m wireMessage, v string) string
	// more returns, for an element of a list, what it takes in addition to text.
	more func(s *scope, m wireMessage, v string) []string
	// fields are the roles of the fields of a message; those of a map's entry are "key" and
	// "value".
	fields map[protoreflect.Name]*role
}

// planner compiles plans: for each message what of it can need work at all, so that
// nothing else is looked at.
type planner struct {
	names    *nameRules
	followed map[protoreflect.FullName]*role
	// overridden says that exportTo is replaced and not to be mapped.
	overridden bool
	done       map[protoreflect.FullName]*messagePlan
}

// messagePlan is what is to be done to the messages of one type. It works on their
// encoding, so that what it does not touch stays as it was written, unknown fields
// included, and costs next to nothing.
type messagePlan struct {
	steps []*step // by field number; nil: nothing to do
	count int
}

// step is what is to be done to one field: a role for its strings, or a plan for the
// messages in it.
type step struct {
	field protoreflect.FullName
	list  bool
	bit   uint64 // tells the steps of a message apart
	role  *role
	plan  *messagePlan
}

// active reports whether the rules can change a value of the role.
func (c *planner) active(r *role) bool {
	return r.sees&c.names.effects != 0 && (r != exportToRole || !c.overridden)
}

// message returns nil when no rule can change such a message.
func (c *planner) message(md protoreflect.MessageDescriptor) *messagePlan {
	if p, ok := c.done[md.FullName()]; ok {
		return p
	}
	if c.done == nil {
		c.done = map[protoreflect.FullName]*messagePlan{}
	}
	// A message that contains itself needs the plan while it is being made.
	p := &messagePlan{}
	c.done[md.FullName()] = p
	for i := range md.Fields().Len() {
		f := md.Fields().Get(i)
		if r := c.followed[f.FullName()]; r != nil {
			p.follow(c, f, r)
		} else if f.Message() != nil {
			if inner := c.message(f.Message()); inner != nil {
				p.add(f, &step{plan: inner})
			}
		}
	}
	if p.steps == nil {
		p = nil
	}
	c.done[md.FullName()] = p
	return p
}

// follow adds what the role of a field demands.
func (p *messagePlan) follow(c *planner, f protoreflect.FieldDescriptor, r *role) {
	switch {
	case !c.active(r):
	case r.fields == nil:
		p.add(f, &step{role: r})
	default:
		inner := &messagePlan{}
		for name, r := range r.fields {
			if f := f.Message().Fields().ByName(name); f != nil {
				inner.follow(c, f, r)
			}
		}
		p.add(f, &step{plan: inner})
	}
}

func (p *messagePlan) add(f protoreflect.FieldDescriptor, st *step) {
	st.field, st.list, st.bit = f.FullName(), f.IsList() || f.IsMap(), 1<<p.count
	p.count++
	if need := int(f.Number()) + 1; need > len(p.steps) {
		p.steps = append(p.steps, make([]*step, need-len(p.steps))...)
	}
	p.steps[f.Number()] = st
}

// errIrregular says that a message that comes once is in several parts, as protobuf allows
// but nobody writes. Its parts must be put together first.
var errIrregular = errors.New("a message is in parts")

// apply returns m rewritten, and m itself when nothing changes.
func (p *messagePlan) apply(s *scope, m wireMessage) (wireMessage, error) {
	w := wireWriter{in: m}
	c := wire.Fields(m)
	for c.Next() {
		if int(c.Number) >= len(p.steps) || p.steps[c.Number] == nil || c.Type != protowire.BytesType {
			w.keep(c.Field())
			continue
		}
		st := p.steps[c.Number]
		if st.role != nil {
			st.text(s, &w, c.Number, c.Field(), c.Value())
			s.blame(string(st.field))
			continue
		}
		if !st.list && w.seen&st.bit != 0 {
			return nil, errIrregular
		}
		w.seen |= st.bit
		to, err := st.plan.apply(s, c.Value())
		if err != nil {
			return nil, err
		}
		if same(to, c.Value()) {
			w.keep(c.Field())
		} else {
			w.replace(c.Number, to)
		}
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	return w.result(), nil
}

// same reports whether two slices are one.
func same(a, b []byte) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// text maps a string. Of a list, names that become one are listed once: istiod refuses
// some lists with duplicates.
func (st *step) text(s *scope, w *wireWriter, num protowire.Number, field, value []byte) {
	v := string(value)
	to := st.role.text(s, w.in, v)
	var more []string
	if st.list && st.role.more != nil {
		more = st.role.more(s, w.in, v)
	}
	switch {
	case to == v && w.out == nil:
		w.keep(field)
	default:
		w.begin()
		if !st.list || !w.has(num, to) {
			w.replace(num, []byte(to))
		}
	}
	for _, m := range more {
		w.begin()
		if !w.has(num, m) {
			w.replace(num, []byte(m))
		}
	}
}

// wireWriter writes a message again from the first field that differs.
type wireWriter struct {
	in   wireMessage
	kept int    // bytes of in that are as they were, while out is nil
	out  []byte // nil until something differs
	seen uint64 // the bits of the steps that were taken
	// What is written, up to indexed bytes of out; only for long lists.
	written map[element]bool
	indexed int
	asked   int
}

// keep takes over a field as it is.
func (w *wireWriter) keep(field []byte) {
	if w.out == nil {
		w.kept += len(field)
		return
	}
	w.out = append(w.out, field...)
}

// begin prepares for what differs.
func (w *wireWriter) begin() {
	if w.out == nil {
		w.out = append(make([]byte, 0, len(w.in)+64), w.in[:w.kept]...)
	}
}

func (w *wireWriter) replace(num protowire.Number, value []byte) {
	w.begin()
	w.out = protowire.AppendTag(w.out, num, protowire.BytesType)
	w.out = protowire.AppendBytes(w.out, value)
}

// has reports whether a string is among those that are written.
func (w *wireWriter) has(num protowire.Number, v string) bool {
	if w.asked++; w.asked > shortList {
		return w.index()[element{num, v}]
	}
	found := false
	w.eachWritten(func(n protowire.Number, have []byte) {
		found = found || n == num && string(have) == v
	})
	return found
}

// shortList is up to how many elements a list is searched through. Beyond, an index is
// worth its memory.
const shortList = 16

type element struct {
	field protowire.Number
	value string
}

// index returns what is written, and keeps it up to date from then on.
func (w *wireWriter) index() map[element]bool {
	if w.written == nil {
		w.written = map[element]bool{}
	}
	w.eachWritten(func(n protowire.Number, v []byte) { w.written[element{n, string(v)}] = true })
	w.indexed = len(w.out)
	return w.written
}

// eachWritten calls f with what is written and not yet in the index.
func (w *wireWriter) eachWritten(f func(protowire.Number, []byte)) {
	c := wire.Fields(w.out[w.indexed:])
	for c.Next() {
		if c.Type == protowire.BytesType {
			f(c.Number, c.Value())
		}
	}
}

func (w *wireWriter) result() wireMessage {
	if w.out == nil {
		return w.in
	}
	return w.out
}

// wireMessage is the encoding of a message.
type wireMessage []byte

// text returns a string of the message by its number.
func (m wireMessage) text(number protowire.Number) string { return string(wire.Last(m, number)) }
