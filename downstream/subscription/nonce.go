package subscription

import (
	"strconv"
	"strings"

	"meshrelay/downstream/snapshot"
)

// nonce is the position of a nonce among all nonces of a type on a stream; 0 means none. The nonces of the
// first answer come before numbered, and the others after it.
type nonce uint64

// numbered is the position before the nonce "1".
const numbered nonce = 1 << 32

// text returns the text of a nonce.
func (w *Watch) text(n nonce) string {
	switch {
	case n == 0:
		return ""
	case n == 1:
		return w.first
	case n <= numbered:
		return snapshot.FirstNonce(w.TypeURL, int(n))
	}
	return strconv.FormatUint(uint64(n-numbered), 10)
}

// nonceOf returns the position of a nonce, 0 if the relay never sends such a text for the type.
func (w *Watch) nonceOf(text string) (n nonce) {
	first, shared := strings.CutPrefix(text, snapshot.FirstNoncePrefix)
	if !shared {
		if number, err := strconv.ParseUint(text, 10, 63); err == nil {
			n = numbered + nonce(number)
		}
	} else if part, isFirst := strings.CutPrefix(first, w.TypeURL); isFirst {
		n = 1
		if number, err := strconv.ParseUint(strings.TrimPrefix(part, "#"), 10, 31); err == nil {
			n = nonce(number)
		}
	}
	if w.text(n) != text {
		return 0 // a number with another spelling, such as "01"
	}
	return n
}

// stale reports whether a nonce is not the newest one.
func (w *Watch) stale(text string) bool { return text != w.text(w.sentNonce) }
