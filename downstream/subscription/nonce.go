package subscription

import (
	"strconv"
	"strings"

	"meshrelay/downstream/snapshot"
)

// nonce is the place of a nonce among those of a type on a stream: those of parts of a first answer
// come before numbered. It is 0 for none.
type nonce uint64

// numbered is the place before that of the nonce "1".
const numbered nonce = 1 << 32

// text returns the nonce as the client sees it.
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

// nonceOf returns the place of a nonce; 0 of a text that is none of the type.
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
		return 0 // spelled as the relay does not
	}
	return n
}

// stale reports whether a nonce is not that of the newest response.
func (w *Watch) stale(text string) bool { return text != w.text(w.sentNonce) }
