package docs_test

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// function has the calls in a function, and the locks that it takes itself, by package.Type.field.
type function struct{ calls, takes []use }

type use struct {
	name     string
	from, to token.Pos // a lock is held between them
}

// TestLocksAreTakenInTheOrderOfTheArchitecture follows calls by their types. It follows those of an interface by their
// names, and those of a function that is a value not at all.
func TestLocksAreTakenInTheOrderOfTheArchitecture(t *testing.T) {
	_, table, _ := strings.Cut(read(t, "architecture.md"), "\n## Locks\n")
	table, _, _ = strings.Cut(table, "\n## ")
	rows, row := map[string]int{}, 0
	for line := range strings.Lines(table) {
		for _, m := range regexp.MustCompile("`(\\w+\\.\\w+\\.\\w+)`").FindAllStringSubmatch(line, -1) {
			rows[m[1]] = row
		}
		row++
	}
	all, unseen := functions(t), maps.Clone(rows)
	targets := func(call string) []*function {
		if f := all[call]; f != nil || !strings.HasPrefix(call, "(meshrelay/") {
			return []*function{f}
		}
		var named []*function // call is a method of an interface
		for name, f := range all {
			if strings.HasSuffix(name, call[strings.LastIndex(call, "."):]) {
				named = append(named, f)
			}
		}
		return named
	}
	for name, f := range all {
		for _, held := range f.takes {
			delete(unseen, held.name)
			visited := map[*function]bool{nil: true}
			var visit func(f *function, from, to token.Pos)
			visit = func(f *function, from, to token.Pos) {
				for _, u := range f.takes {
					if r, is := rows[u.name]; is && from < u.from && u.from < to && r < rows[held.name] {
						t.Errorf("%s holds %s while %s is taken", name, held.name, u.name)
					}
				}
				for _, call := range f.calls {
					for _, target := range targets(call.name) {
						if from < call.from && call.from < to && !visited[target] {
							visited[target] = true
							visit(target, 0, 1<<62)
						}
					}
				}
			}
			visit(f, held.from, held.to)
		}
	}
	if len(rows) < 10 || len(unseen) > 0 {
		t.Errorf("nobody takes %q, of %d", slices.Collect(maps.Keys(unseen)), len(rows))
	}
}

// functions returns the functions of the packages that bring and serve resources, by their full names.
func functions(t *testing.T) map[string]*function {
	list := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}} {{.Dir}}/ {{join .GoFiles \" \"}}", "./downstream", "./upstreams/...")
	list.Dir = ".."
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	all, exports, files := map[string]*function{}, map[string]string{}, token.NewFileSet()
	imports := importer.ForCompiler(files, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	for _, line := range lines {
		exports[strings.Fields(line)[0]] = strings.Fields(line)[1]
	}
	for _, line := range lines {
		if !strings.HasPrefix(line, "meshrelay/") {
			continue
		}
		fields, parsed := strings.Fields(line), []*ast.File(nil)
		for _, name := range fields[3:] {
			file, err := parser.ParseFile(files, fields[2]+name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			parsed = append(parsed, file)
		}
		info := &types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{}}
		if _, err := (&types.Config{Importer: imports}).Check(fields[0], files, parsed, info); err != nil {
			t.Fatal(err)
		}
		for _, file := range parsed {
			for _, d := range file.Decls {
				if fn, is := d.(*ast.FuncDecl); is && fn.Body != nil {
					all[info.Defs[fn.Name].(*types.Func).FullName()] = functionOf(fn.Body, info)
				}
			}
		}
	}
	return all
}

func functionOf(body *ast.BlockStmt, info *types.Info) *function {
	f, blocks := &function{}, []ast.Node{body}
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			return false
		case *ast.FuncLit:
			blocks = append(blocks, n)
		case *ast.DeferStmt: // an unlock at the end
			sel, is := n.Call.Fun.(*ast.SelectorExpr)
			return !is || !strings.HasSuffix(sel.Sel.Name, "Unlock")
		case *ast.CallExpr:
			sel, is := n.Fun.(*ast.SelectorExpr)
			if !is {
				return true
			}
			if called, is := info.Uses[sel.Sel].(*types.Func); is {
				f.calls = append(f.calls, use{name: called.FullName(), from: n.Pos()})
			}
			field, is := sel.X.(*ast.SelectorExpr)
			if !is || info.Selections[field] == nil {
				return true
			}
			owner := types.TypeString(info.Selections[field].Recv(), (*types.Package).Name)
			lock := strings.TrimPrefix(owner, "*") + "." + field.Sel.Name
			switch sel.Sel.Name {
			case "Lock", "RLock", "TryLock":
				within := blocks[0]
				for _, b := range blocks {
					if b.Pos() < n.Pos() && n.Pos() < b.End() {
						within = b
					}
				}
				f.takes = append(f.takes, use{lock, n.Pos(), within.End()})
			case "Unlock", "RUnlock":
				for i := range f.takes {
					if u := &f.takes[i]; u.name == lock {
						u.to = min(u.to, n.Pos())
					}
				}
			}
		}
		return true
	})
	return f
}
