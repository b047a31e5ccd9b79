package rewrite

import (
	"errors"

	"meshrelay/internal/wire"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// role is the meaning of a field's values. It decides how the rules map them. Either one of the functions or
// fields is set.
type role struct {
	// sees has the effects that can change a value.
	sees effect
	// text maps a string. scope.message is the message that holds it.
	text func(s *scope, v string) string
	// list maps an element of a list of strings. It also returns elements to add to the list.
	list func(s *scope, v string) (to string, more []string)
	// object maps a JSON object in place, and reports whether it changed.
	object func(s *scope, o object) bool
	// fields are the roles of the fields of a message; those of a map's entry are "key" and
	// "value".
	fields map[protoreflect.Name]*role
}

// planner compiles a plan for each message type, with the fields that the rules can change.
type planner struct {
	names *nameRules
	done  map[protoreflect.FullName]*messagePlan
}

// messagePlan rewrites the encoded messages of one type. All other fields keep their bytes, unknown fields
// included.
type messagePlan struct {
	steps []*step // by field number; nil: nothing to do
	count int
}

// step rewrites one field: a role maps its strings, or a plan rewrites its messages.
type step struct {
	field protoreflect.FullName
	list  bool
	bit   uint64 // of this step in wireWriter.seen
	role  *role
	plan  *messagePlan
}

// active reports whether the rules can change a value of the role. When a rule replaces exportTo, nothing in it
// is mapped.
func (c *planner) active(r *role) bool {
	return r.sees&c.names.effects != 0 && (r != exportToRole || c.names.ExportTo == nil)
}

// message returns the plan of a message type, nil when no rule can change such a message.
func (c *planner) message(md protoreflect.MessageDescriptor) *messagePlan {
	if p, ok := c.done[md.FullName()]; ok {
		return p
	}
	// A message type that contains itself refers to its own plan.
	p := &messagePlan{}
	c.done[md.FullName()] = p
	for i := range md.Fields().Len() {
		f := md.Fields().Get(i)
		if r := followedFields[f.FullName()]; r != nil {
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

// follow adds the steps for a field with a role.
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

// errIrregular is the error of a singular message field that comes several times. Protobuf allows that, but no
// encoder writes it. The parts must be joined first.
var errIrregular = errors.New("a message is in parts")

// apply returns the rewritten message, or m itself when nothing changes.
func (p *messagePlan) apply(s *scope, m []byte) ([]byte, error) {
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
	if w.out == nil {
		return m, nil
	}
	return w.out, nil
}

// same reports whether two slices are the same memory.
func same(a, b []byte) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// text maps a string. In a list, it writes equal results only once: istiod refuses some lists with duplicates.
func (st *step) text(s *scope, w *wireWriter, num protowire.Number, field, value []byte) {
	var to string
	var more []string
	v := string(value)
	s.message = w.in
	if st.role.list != nil {
		to, more = st.role.list(s, v)
	} else {
		to = st.role.text(s, v)
	}
	if to == v && w.out == nil {
		w.keep(field)
	} else {
		w.text(num, to, st.list)
	}
	for _, m := range more {
		w.text(num, m, true)
	}
}

// wireWriter copies a message from the first field that differs.
type wireWriter struct {
	in   []byte
	kept int    // the unchanged bytes of in, while out is nil
	out  []byte // nil until something differs
	seen uint64 // the bits of the steps so far
	// written has the strings in out[:indexed].
	written map[element]bool
	indexed int
}

type element struct {
	field protowire.Number
	value string
}

// keep copies a field.
func (w *wireWriter) keep(field []byte) {
	if w.out == nil {
		w.kept += len(field)
		return
	}
	w.out = append(w.out, field...)
}

// replace writes a changed field.
func (w *wireWriter) replace(num protowire.Number, value []byte) {
	w.begin()
	w.out = protowire.AppendTag(w.out, num, protowire.BytesType)
	w.out = protowire.AppendBytes(w.out, value)
}

func (w *wireWriter) begin() {
	if w.out == nil {
		w.out = append(make([]byte, 0, len(w.in)+64), w.in[:w.kept]...)
	}
}

// text writes a string, in a list only once.
func (w *wireWriter) text(num protowire.Number, v string, list bool) {
	w.begin()
	if !list || !w.has(num, v) {
		w.replace(num, []byte(v))
	}
}

// has reports whether a string is written already.
func (w *wireWriter) has(num protowire.Number, v string) bool {
	if w.written == nil {
		w.written = map[element]bool{}
	}
	c := wire.Fields(w.out[w.indexed:])
	for c.Next() {
		if c.Type == protowire.BytesType {
			w.written[element{c.Number, string(c.Value())}] = true
		}
	}
	w.indexed = len(w.out)
	return w.written[element{num, v}]
}
