package bundle

import "slices"

// maxNesting bounds the depth of the JSON that is followed, and so the number of closing brackets.
const maxNesting = 64

// outline reads JSON in parts and finds where to cut it: between the elements of its outermost arrays.
// The text before such a place, with its brackets closed, is valid JSON.
type outline struct {
	closers           []byte // closing brackets of the open arrays and objects
	inString, escaped bool
	array             int  // the depth of the outermost open array; 0: none
	blank             bool // the array has no element yet
	at                int  // the number of bytes read

	elements int // complete elements of the outermost arrays
	// whole is the number of bytes before the cut. end has the brackets that close them.
	whole int
	end   []byte
}

// Write reads the next bytes. It never fails.
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

// next ends an element at a comma, or an array or object at its closing bracket c.
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

// mark notes that the text can be cut after whole bytes.
func (o *outline) mark(whole int) {
	if len(o.closers) > maxNesting {
		return
	}
	o.whole, o.end = whole, append(o.end[:0], o.closers...)
}

// wholeJSON cuts JSON to at most most bytes, so that it stays JSON. It returns also the number of elements
// that are left in its outermost arrays.
func wholeJSON(text []byte, most int) (whole []byte, elements int) {
	var o outline
	_, _ = o.Write(text[:max(min(len(text), most-maxNesting), 0)])
	slices.Reverse(o.end)
	return append(slices.Clone(text[:o.whole]), o.end...), o.elements
}
