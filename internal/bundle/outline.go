package bundle

import "slices"

// maxNesting bounds how deep JSON is followed, and so what closes it.
const maxNesting = 64

// outline follows JSON as it comes, to cut it between the elements of its outermost arrays: what is cut
// there is closed and stays JSON.
type outline struct {
	closers           []byte // of what is open
	inString, escaped bool
	array             int  // how deep the outermost array is that is open; 0: none
	blank             bool // nothing of an element has come yet
	at                int  // how many bytes have come

	elements int // of the outermost arrays, that are whole
	// whole is how many bytes can stay, and end what closes them.
	whole int
	end   []byte
}

// Write takes the next bytes. It never fails.
func (o *outline) Write(text []byte) (int, error) {
	for _, c := range text {
		o.at++
		switch {
		case o.escaped:
			o.escaped = false
		case o.inString:
			o.escaped, o.inString = c == '\\', c != '"'
		case c == ' ' || c == '\n' || c == '\t' || c == '\r':
		case c == '[' || c == '{':
			o.open(c)
		case c == ']' || c == '}' || c == ',':
			o.next(c)
		default:
			o.inString, o.blank = c == '"', false
		}
	}
	return len(text), nil
}

func (o *outline) open(c byte) {
	o.blank = false
	outside := o.array == 0
	o.closers = append(o.closers, c+2) // '[' and ']', '{' and '}' are two apart
	if outside && c == '[' {
		o.array, o.blank = len(o.closers), true
	}
	if outside {
		o.mark(o.at)
	}
}

// next takes the end of an element, or of what has elements.
func (o *outline) next(c byte) {
	depth := len(o.closers)
	if depth > 0 && depth == o.array && !o.blank {
		o.elements++
	}
	if o.array == 0 || depth == o.array {
		o.mark(o.at - 1)
	}
	if c == ',' || depth == 0 {
		return
	}
	o.closers = o.closers[:depth-1]
	if depth == o.array {
		o.array = 0
	}
}

// mark notes that the text can be cut after so many bytes.
func (o *outline) mark(whole int) {
	if len(o.closers) > maxNesting {
		return
	}
	o.whole, o.end = whole, append(o.end[:0], o.closers...)
}

// wholeJSON returns the part of JSON that is whole, of at most so many bytes, and how many elements of its
// outermost arrays it has.
func wholeJSON(text []byte, most int) (whole []byte, elements int) {
	var o outline
	_, _ = o.Write(text[:max(min(len(text), most-maxNesting), 0)])
	slices.Reverse(o.end)
	return append(slices.Clone(text[:o.whole]), o.end...), o.elements
}
