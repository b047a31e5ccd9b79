package main

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// mutant is one small change of one function.
type mutant struct {
	id        int
	pkg, file string // the file is relative to the module
	line      int
	what      string // the change, for people
	fn        *function
	from, to  int    // offsets in the file of what is replaced
	with      string // what replaces it
	nth       int    // of equal changes of the same function
	rank      uint64
	judges    []judge
	judged    bool
	killer    string // the tests that noticed, empty for none
}

func (m *mutant) String() string {
	return fmt.Sprintf("%s:%d %s: %s", m.file, m.line, m.fn.label(), m.what)
}

// draw ranks a mutant by what it changes and not by where that stands, so that a change elsewhere leaves
// most of a sample as it is.
func (m *mutant) draw(seed uint64) uint64 {
	h := sha256.Sum256(fmt.Appendf(nil, "%d|%s|%s|%s|%d", seed, filepath.Base(m.file), m.fn.label(), m.what, m.nth))
	return binary.BigEndian.Uint64(h[:])
}

// function is a function or method with a body, in the text of its file.
type function struct {
	decl *ast.FuncDecl
	src  []byte
	fset *token.FileSet
}

func (f *function) offset(p token.Pos) int { return f.fset.Position(p).Offset }

func (f *function) label() string {
	if f.decl.Recv == nil || len(f.decl.Recv.List) == 0 {
		return f.decl.Name.Name
	}
	t := f.decl.Recv.List[0].Type
	return strings.TrimPrefix(string(f.src[f.offset(t.Pos()):f.offset(t.End())]), "*") + "." + f.decl.Name.Name
}

// find lists the mutants of a package.
func find(dir, pkg string) (all []*mutant, err error) {
	files, err := filepath.Glob(filepath.Join(dir, pkg, "*.go"))
	if err != nil {
		return nil, err
	}
	slices.Sort(files)
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		fset := token.NewFileSet()
		parsed, err := parser.ParseFile(fset, path, src, parser.SkipObjectResolution|parser.ParseComments)
		if err != nil {
			return nil, err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return nil, err
		}
		if ast.IsGenerated(parsed) {
			continue
		}
		for _, d := range parsed.Decls {
			decl, ok := d.(*ast.FuncDecl)
			if !ok || decl.Body == nil || decl.Name.Name == "init" || decl.Name.Name == "_" {
				continue
			}
			all = append(all, (&function{decl, src, fset}).mutants(pkg, rel)...)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no code to break", pkg)
	}
	return all, nil
}

// swaps has what each operator is replaced by.
var swaps = map[token.Token][]token.Token{
	token.EQL: {token.NEQ}, token.NEQ: {token.EQL},
	token.LSS: {token.LEQ, token.GEQ}, token.LEQ: {token.LSS, token.GTR},
	token.GTR: {token.GEQ, token.LEQ}, token.GEQ: {token.GTR, token.LSS},
	token.LAND: {token.LOR}, token.LOR: {token.LAND},
	token.ADD: {token.SUB}, token.SUB: {token.ADD}, token.MUL: {token.QUO}, token.QUO: {token.MUL},
}

// mutants lists the changes of one function.
func (f *function) mutants(pkg, file string) (all []*mutant) {
	seen := map[string]int{}
	add := func(from, to token.Pos, with string) {
		a, b := f.offset(from), f.offset(to)
		old := string(f.src[a:b])
		what := fmt.Sprintf("%s → %s", brief(old), brief(with))
		if with == "" {
			what = "without " + brief(old)
		}
		all = append(all, &mutant{pkg: pkg, file: file, line: f.fset.Position(from).Line, what: what, fn: f, from: a, to: b, with: with, nth: seen[what]})
		seen[what]++
	}
	text := func(n ast.Node) string { return string(f.src[f.offset(n.Pos()):f.offset(n.End())]) }
	remove := func(s ast.Stmt) {
		switch s := s.(type) {
		case *ast.ExprStmt, *ast.IncDecStmt, *ast.DeferStmt:
			add(s.Pos(), s.End(), "")
		case *ast.AssignStmt:
			if s.Tok != token.DEFINE {
				add(s.Pos(), s.End(), "")
			}
		}
	}
	ast.Inspect(f.decl.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			for _, op := range swaps[n.Op] {
				// The whole expression is the place, so that a person sees what changes.
				add(n.Pos(), n.End(), text(n.X)+" "+op.String()+" "+text(n.Y))
			}
		case *ast.UnaryExpr:
			if n.Op == token.NOT {
				add(n.Pos(), n.End(), text(n.X))
			}
		case *ast.IfStmt:
			add(n.Cond.Pos(), n.Cond.End(), "!("+text(n.Cond)+")")
		case *ast.Ident:
			switch n.Name {
			case "true":
				add(n.Pos(), n.End(), "false")
			case "false":
				add(n.Pos(), n.End(), "true")
			}
		case *ast.BranchStmt:
			switch {
			case n.Label != nil:
			case n.Tok == token.CONTINUE:
				add(n.Pos(), n.End(), "break")
			case n.Tok == token.BREAK:
				add(n.Pos(), n.End(), "continue")
			}
		case *ast.BlockStmt:
			for _, s := range n.List {
				remove(s)
			}
		case *ast.CaseClause:
			for _, s := range n.Body {
				remove(s)
			}
		case *ast.CommClause:
			for _, s := range n.Body {
				remove(s)
			}
		}
		return true
	})
	return all
}

// brief is the first line of a text, for a report.
func brief(s string) string {
	line, rest, _ := strings.Cut(s, "\n")
	if rest != "" {
		line += " …"
	}
	if r := []rune(line); len(r) > 90 {
		line = string(r[:90]) + "…"
	}
	return line
}
