package jwt

import (
	"encoding/base64"
	"slices"
	"testing"
)

func TestAudiencesAreOneTextOrAList(t *testing.T) {
	for claims, want := range map[string][]string{
		`{"aud":"a"}`:       {"a"},
		`{"aud":["a","b"]}`: {"a", "b"},
		`{"aud":null}`:      nil,
		`{}`:                nil,
		`{"aud":1}`:         {"!"}, // no JWT
		`{"aud":["a",1]}`:   {"!"},
	} {
		c, ok := Look("h." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".s")
		if bad := slices.Equal(want, []string{"!"}); ok == bad || ok && !slices.Equal(c.Audiences, want) {
			t.Errorf("%s: %q, %t", claims, c.Audiences, ok)
		}
	}
}
