package kube

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"
)

// pathAt returns the path of keys and indexes to the value at a column of a one-line JSON text.
// Columns count characters from 1.
func pathAt(text []byte, column int) []string {
	target := 0
	for range column - 1 {
		_, n := utf8.DecodeRune(text[min(target, len(text)):])
		target += n
	}
	path, _ := seek(json.NewDecoder(bytes.NewReader(text)), int64(target))
	return path
}

// seek reads one value up to the token at an offset. It returns the path to the token within the
// value, and false if the value does not contain the offset. It stops at a token that this decoder
// does not read: that of protojson accepts control characters in strings.
func seek(dec *json.Decoder, offset int64) (path []string, found bool) {
	tok, err := dec.Token()
	delim, nested := tok.(json.Delim)
	if err != nil || !nested || dec.InputOffset() > offset {
		return nil, err != nil || dec.InputOffset() > offset
	}
	for i := 0; dec.More(); i++ {
		step := strconv.Itoa(i)
		if delim == '{' {
			key, err := dec.Token()
			step, _ = key.(string)
			if err != nil || dec.InputOffset() > offset {
				return []string{step}, true
			}
		}
		if rest, found := seek(dec, offset); found {
			return append([]string{step}, rest...), true
		}
	}
	_, err = dec.Token()
	return nil, err != nil || dec.InputOffset() > offset
}

// fieldName returns a path in the usual form: spec.hosts[0].name.
func fieldName(path []string) string {
	var b strings.Builder
	for _, step := range path {
		switch _, err := strconv.Atoi(step); {
		case err == nil:
			b.WriteString("[" + step + "]")
		case b.Len() > 0:
			b.WriteString("." + step)
		default:
			b.WriteString(step)
		}
	}
	return b.String()
}
