package panics

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
)

func TestPanicIsBounded(t *testing.T) {
	p := Try(func() { panic(strings.Repeat("x", 1<<20)) })
	if p == nil || len(p.Value) > maxValue+8 || len(p.Stack) > maxStack+8 || !strings.Contains(p.Error(), "xxx") {
		t.Errorf("%+v", p)
	}
	if p := Try(func() {}); p != nil {
		t.Error("a panic without one")
	}
}

func TestAPanicIsAnErrorWithItsFirstStack(t *testing.T) {
	first := Contain(func() error { panic("first") })
	again := Contain(func() error { panic(first) })
	if p := (*Panic)(nil); !errors.As(again, &p) || p.Value != "first" || !errors.Is(again, first) {
		t.Errorf("%v, then %v", first, again)
	}
	v, err := Value(func() (int, error) { return 7, errors.ErrUnsupported })
	if v != 7 || !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("%d, %v", v, err)
	}
}

// Whoever recovers elsewhere might go on with state that is half changed.
func TestNobodyElseRecovers(t *testing.T) {
	tree, tests := os.DirFS("../.."), []string{"attacks", "bench", "chaos", "e2e", "tools"}
	err := fs.WalkDir(tree, ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (slices.Contains(tests, p) || p == "internal/testing"):
			return fs.SkipDir
		case path.Ext(p) != ".go" || strings.HasSuffix(p, "_test.go") || path.Dir(p) == "upstreams/intake":
			return nil
		}
		text, err := fs.ReadFile(tree, p)
		if n := strings.Count(string(text), "recover()"); n > 0 && p != "internal/panics/panics.go" || n > 1 {
			t.Errorf("%s recovers: use panics.Try", p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
