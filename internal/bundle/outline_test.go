package bundle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

// TestWhatIsCutStaysJSON, wherever it is cut, and every element in it is complete.
func TestWhatIsCutStaysJSON(t *testing.T) {
	for text, elements := range map[string]int{
		`[]`: 0, `{}`: 0, ` [ ] `: 0, `[1]`: 1, `[1, 22 ,333]`: 3, `["a,]}","b\"],",{"c":[1,2,{"d":"[,"}]},[],{}]`: 5,
		"[\n{\"name\":\"a\",\"list\":[1,2]},\n{\"name\":\"b\"}\n]\n":                                    2,
		`{"east":[{"id":1},{"id":2}],"west":[],"text":"[1,2","north":[3],"last":{"more":{"in":[4,5]}}}`: 5,
		`{"a":1,"b":"two","c":null}`: 0,
	} {
		var all outline
		for i := range len(text) { // in parts
			_, _ = all.Write([]byte{text[i]})
		}
		if all.elements != elements {
			t.Errorf("%s has %d elements, want %d", text, all.elements, elements)
		}
		least := 0
		for most := range len(text) + 1 {
			cut, kept := wholeJSON([]byte(text), most+maxNesting)
			switch {
			case len(cut) == 0 && strings.TrimSpace(text[:most]) == "":
			case !json.Valid(cut):
				t.Errorf("%s after %d: %s", text, most, cut)
			case kept < least || kept > elements || strings.Count(string(cut), `"name"`) > kept:
				t.Errorf("%s after %d: %d elements: %s", text, most, kept, cut)
			}
			least = kept
		}
		if least != elements {
			t.Errorf("%s has %d whole elements, want %d", text, least, elements)
		}
	}
	deep := []byte(strings.Repeat(`{"a":`, 10*maxNesting))
	if cut, _ := wholeJSON(deep, len(deep)); !json.Valid(cut) || len(cut) > len(deep) {
		t.Errorf("%s", cut)
	}
}

// TestABundleTellsHowManyElementsAreLeftOut when JSON is larger than its bound.
func TestABundleTellsHowManyElementsAreLeftOut(t *testing.T) {
	var out bytes.Buffer
	b := New(&out, "bundle", time.Unix(0, 0))
	const room, elements = 1000, 300
	b.left = room
	b.Text("versions.json", "the versions", func(w io.Writer) error {
		for i := range elements {
			if _, err := fmt.Fprintf(w, "%c\n{\"name\":\"entry-%d\",\"token\":\"a\"}", "[,"[min(i, 1)], i); err != nil {
				return err
			}
		}
		_, err := io.WriteString(w, "\n]\n")
		return err
	})
	b.Text("none.json", "no room", func(w io.Writer) error { _, err := io.WriteString(w, "[1]"); return err })
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	all := files(t, out.Bytes())
	var kept []struct{ Name string }
	if err := json.Unmarshal([]byte(all["bundle/versions.json"]), &kept); err != nil || len(kept) == 0 || len(all["bundle/versions.json"]) > room || b.left < 0 {
		t.Fatalf("%v, %d left: %s", err, b.left, all["bundle/versions.json"])
	}
	if last := kept[len(kept)-1].Name; last != fmt.Sprintf("entry-%d", len(kept)-1) {
		t.Errorf("%d elements, and the last is %s", len(kept), last)
	}
	want := fmt.Sprintf("the versions  (cut at the size limit, %d of its %d elements are left out)\n", elements-len(kept), elements)
	if manifest := all["bundle/MANIFEST.txt"]; !strings.Contains(manifest, want) {
		t.Errorf("want %q in %s", want, manifest)
	}
}
