package intake_test

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// nothing imports no package: what a half calls of itself is known without.
type nothing struct{}

func (nothing) Import(string) (*types.Package, error) { return nil, errors.New("not needed") }

// half is a parsed half of the intake.
type half struct {
	fset  *token.FileSet
	order []string // its files by doc.go, from top to bottom
	files []*ast.File
	uses  map[*ast.Ident]types.Object
	pkg   *types.Package
}

func read(t *testing.T, dir string) *half {
	t.Helper()
	h := &half{fset: token.NewFileSet(), uses: map[*ast.Ident]types.Object{}}
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, path := range paths {
		name := filepath.Base(path)
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(h.fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if h.files = append(h.files, f); name != "doc.go" {
			names = append(names, name)
			continue
		}
		for _, line := range regexp.MustCompile(`(?m)^ *- .*:`).FindAllString(f.Doc.Text(), -1) {
			h.order = append(h.order, regexp.MustCompile(`\w+\.go`).FindAllString(line, -1)...)
		}
	}
	if sorted := slices.Sorted(slices.Values(h.order)); !slices.Equal(sorted, names) {
		t.Errorf("%s/doc.go lists %v, and there are %v", dir, sorted, names)
	}
	conf := types.Config{Importer: nothing{}, Error: func(error) {}}
	h.pkg, _ = conf.Check(dir, h.fset, h.files, &types.Info{Uses: h.uses})
	return h
}

// level returns how far down the file of a position is.
func (h *half) level(p token.Pos) int {
	return slices.Index(h.order, filepath.Base(h.fset.Position(p).Filename))
}

// up are calls of records that still go up.
var up = []string{
	"Adopt calls RejudgeRoutes",
	"Adopt calls newBook",
	"Adopt calls newDiscovery",
	"Endpoints calls importRecord",
	"Holds calls isAsItWas",
	"Join calls Panicked",
	"Summary calls isOverLimit",
	"adoptOne calls check",
	"adoptOne calls importRecord",
	"check calls checkRoot",
	"decode calls Panicked",
	"deleteKept calls delete",
	"dropUnopened calls deleteAll",
	"extend calls Panicked",
	"extend calls delete",
	"judge calls Panicked",
	"mark calls tooLarge",
	"refollow calls Panicked",
	"refollow calls reshape",
	"rejudge calls importRecord",
	"reportRefused calls isOverLimit",
}

// TestFilesOfAHalfCallDown: no function calls one in a file above its own. The order is that of doc.go.
func TestFilesOfAHalfCallDown(t *testing.T) {
	found := map[string]bool{}
	for _, dir := range []string{"gate", "records"} {
		h, calls := read(t, dir), 0
		for _, f := range h.files {
			for _, d := range f.Decls {
				fn, is := d.(*ast.FuncDecl)
				if !is {
					continue
				}
				ast.Inspect(fn, func(n ast.Node) bool {
					id, is := n.(*ast.Ident)
					if !is {
						return true
					}
					callee, is := h.uses[id].(*types.Func)
					if !is || callee.Pkg() != h.pkg || callee.Signature().Recv() != nil && types.IsInterface(callee.Signature().Recv().Type()) {
						return true
					}
					call := fn.Name.Name + " calls " + callee.Name()
					if calls++; h.level(callee.Pos()) >= h.level(fn.Pos()) {
						return true
					}
					if found[call] = true; dir == "gate" || !slices.Contains(up, call) {
						t.Errorf("%s: %s calls up: %s is in %s", h.fset.Position(id.Pos()), fn.Name.Name, callee.Name(), h.order[h.level(callee.Pos())])
					}
					return true
				})
			}
		}
		if calls < 50 {
			t.Errorf("only %d calls of %s are known", calls, dir)
		}
	}
	for _, call := range up {
		if !found[call] {
			t.Errorf("%s does not go up any more: remove it from the list", call)
		}
	}
}

// TestNoTypeHoldsTooMuch: a type with more than 15 fields has parts with names of their own. What is embedded counts once.
func TestNoTypeHoldsTooMuch(t *testing.T) {
	for _, dir := range []string{".", "gate"} {
		paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(paths) == 0 {
			t.Fatal(dir, err)
		}
		for _, path := range paths {
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if spec, is := n.(*ast.TypeSpec); is && !strings.HasSuffix(path, "_test.go") {
					if s, is := spec.Type.(*ast.StructType); is && s.Fields.NumFields() > 15 {
						t.Errorf("%s: %s has %d fields", path, spec.Name.Name, s.Fields.NumFields())
					}
				}
				return true
			})
		}
	}
}
