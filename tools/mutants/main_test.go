package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// files are a module whose tests notice that Max is wrong, but not at equal numbers, and never call Loud.
var files = map[string]string{
	"go.mod": "module small\n\ngo 1.26\n",
	"p/p.go": `package p

func Max(a, _ int, more ...int) (m int) {
	m = a
	for _, b := range more {
		if b > m {
			m = b
		}
	}
	return m
}

type box[V any] struct{ v V }

func (b *box[V]) put(v V) { b.v = v }

func Loud() bool { return true }
`,
	"p/p_test.go": `package p

import "testing"

func TestMax(t *testing.T) {
	var b box[int]
	b.put(Max(1, 0, 3, 2))
	if b.v != 3 || Max(4, 0) != 4 {
		t.Fatal(b.v)
	}
}
`,
}

func TestMutantsAreNoticedByTestsThatSeeThem(t *testing.T) {
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("GOWORK", "off")
	drawn, err := run(t.Context(), dir, []group{{[]string{"./p"}, []judge{{own, "."}}}}, 100, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	report(&got, drawn)
	const want = `survives p/p.go:6 Max: b > m → b >= m
survives p/p.go:17 Loud: true → false
killed    5 of    7  ./p
killed    5 of    7  (71.4 %)
`
	if got.String() != want {
		t.Errorf("got\n%s\nwant\n%s", got.String(), want)
	}
}
