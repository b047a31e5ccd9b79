package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// build makes test binaries of the module in dir, with mutants in them.
type build struct {
	dir, work string
	takes     map[string]time.Duration // by tests: how long they take with nothing broken
}

// compile takes mutants from the front of all until n of them compile.
func (b *build) compile(ctx context.Context, all []*mutant, n int) ([]*mutant, error) {
	var drawn []*mutant
	next := 0
	for {
		for ; len(drawn) < n && next < len(all); next++ {
			all[next].id = next + 1
			drawn = append(drawn, all[next])
		}
		bad, err := b.broken(ctx, drawn)
		if err != nil {
			return nil, err
		}
		if len(bad) == 0 {
			break
		}
		drawn = slices.DeleteFunc(drawn, func(m *mutant) bool { return bad[m.id] })
	}
	for _, of := range b.binaries(drawn) {
		cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay", b.overlay(), "-o", b.binary(of), of)
		cmd.Dir = b.dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", of, err, out)
		}
	}
	return drawn, nil
}

// binaries lists the packages whose tests judge mutants.
func (b *build) binaries(drawn []*mutant) []string {
	pkgs := map[string]bool{}
	for _, m := range drawn {
		for _, j := range m.judges {
			pkgs[j.of(m)] = true
		}
	}
	return slices.Sorted(maps.Keys(pkgs))
}

func (b *build) overlay() string { return filepath.Join(b.work, "overlay.json") }

func (b *build) binary(pkg string) string {
	return filepath.Join(b.work, flat(pkg)+".test")
}

// flat makes one file name of a path in the module.
func flat(path string) string { return strings.ReplaceAll(strings.TrimPrefix(path, "./"), "/", "_") }

// of returns the package whose tests judge a mutant.
func (j judge) of(m *mutant) string {
	if j.pkg == own {
		return m.pkg
	}
	return j.pkg
}

var position = regexp.MustCompile(`^(\S+\.go):(\d+):`)

// broken writes the overlay, and returns the mutants that do not compile.
func (b *build) broken(ctx context.Context, drawn []*mutant) (map[int]bool, error) {
	byFile := map[string][]*mutant{}
	pkgs := map[string]bool{}
	for _, m := range drawn {
		byFile[m.file] = append(byFile[m.file], m)
		pkgs[m.pkg] = true
	}
	replace := map[string]string{}
	lines := map[string][]int{} // by file: whose copy a line belongs to
	for file, ms := range byFile {
		text, owners := render(ms)
		to := filepath.Join(b.work, flat(file))
		if err := os.WriteFile(to, text, 0o600); err != nil {
			return nil, err
		}
		replace[filepath.Join(b.dir, file)] = to
		lines[file] = owners
	}
	for pkg := range pkgs {
		name, err := packageName(filepath.Join(b.dir, pkg))
		if err != nil {
			return nil, err
		}
		to := filepath.Join(b.work, flat(pkg)+"_switch.go")
		if err := os.WriteFile(to, []byte("package "+name+"\n\nimport (\n\t\"os\"\n\t\"strconv\"\n)\n\nvar mutantOn, _ = strconv.Atoi(os.Getenv(\"RELAY_MUTANT\"))\n"), 0o600); err != nil {
			return nil, err
		}
		replace[filepath.Join(b.dir, pkg, "zz_mutants.go")] = to
	}
	j, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(b.overlay(), j, 0o600); err != nil {
		return nil, err
	}
	bad := map[int]bool{}
	for _, pkg := range slices.Sorted(maps.Keys(pkgs)) {
		cmd := exec.CommandContext(ctx, "go", "build", "-gcflags=-e", "-overlay", b.overlay(), pkg)
		cmd.Dir = b.dir
		out, err := cmd.CombinedOutput()
		if err == nil {
			continue
		}
		for line := range strings.Lines(string(out)) {
			m := position.FindStringSubmatch(line)
			if m == nil {
				continue
			}
			at, _ := strconv.Atoi(m[2])
			for file, owners := range lines {
				if filepath.Base(m[1]) == flat(file) && at < len(owners) && owners[at] != 0 {
					bad[owners[at]] = true
				}
			}
		}
		if len(bad) == 0 {
			return nil, fmt.Errorf("%s does not build, and no mutant is the reason: %w\n%s", pkg, err, out)
		}
	}
	return bad, nil
}

func packageName(dir string) (string, error) {
	found, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return "", err
	}
	for _, path := range found {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(string(src)) {
			if name, ok := strings.CutPrefix(line, "package "); ok {
				return strings.TrimSpace(name), nil
			}
		}
	}
	return "", fmt.Errorf("no Go package in %s", dir)
}

// render returns a file whose functions call the copies that are broken, with the copies, and for each
// of its lines the mutant that it belongs to, or 0.
func render(ms []*mutant) (text []byte, owners []int) {
	slices.SortFunc(ms, func(a, b *mutant) int { return cmp.Compare(a.id, b.id) })
	byFunc := map[*ast.FuncDecl][]*mutant{}
	var decls []*ast.FuncDecl
	for _, m := range ms {
		if byFunc[m.fn.decl] == nil {
			decls = append(decls, m.fn.decl)
		}
		byFunc[m.fn.decl] = append(byFunc[m.fn.decl], m)
	}
	slices.SortFunc(decls, func(a, b *ast.FuncDecl) int { return cmp.Compare(a.Pos(), b.Pos()) })
	f := ms[0].fn
	var head, tail bytes.Buffer
	at := 0
	for _, d := range decls {
		named := byFunc[d][0].fn
		body := named.offset(d.Body.Lbrace) + 1
		sig, recv, args := named.signature()
		head.Write(f.src[at:named.offset(d.Pos())])
		head.WriteString(sig + " { switch mutantOn {")
		for _, m := range byFunc[d] {
			call := fmt.Sprintf("%s%s%s", recv, m.name(), args)
			if d.Type.Results != nil && len(d.Type.Results.List) > 0 {
				fmt.Fprintf(&head, " case %d: return %s;", m.id, call)
			} else {
				fmt.Fprintf(&head, " case %d: %s; return;", m.id, call)
			}
		}
		head.WriteString(" };")
		at = body
	}
	head.Write(f.src[at:])
	owners = make([]int, bytes.Count(head.Bytes(), []byte("\n"))+2)
	head.WriteString("\n")
	for _, d := range decls {
		for _, m := range byFunc[d] {
			start, name, end := m.fn.offset(d.Pos()), m.fn.offset(d.Name.Pos()), m.fn.offset(d.End())
			var one bytes.Buffer
			one.Write(f.src[start:name])
			one.WriteString(m.name())
			one.Write(f.src[m.fn.offset(d.Name.End()):m.from])
			one.WriteString(m.with)
			one.Write(f.src[m.to:end])
			one.WriteString("\n")
			for range bytes.Count(one.Bytes(), []byte("\n")) {
				owners = append(owners, m.id)
			}
			tail.Write(one.Bytes())
		}
	}
	return append(head.Bytes(), tail.Bytes()...), owners
}

func (m *mutant) name() string { return fmt.Sprintf("%s_mutant%d", m.fn.decl.Name.Name, m.id) }

// signature returns the head of a function with a name for each parameter, "r." for a method, and the
// arguments that pass them on.
func (f *function) signature() (head, recv, args string) {
	d := f.decl
	text := func(n ast.Node) string { return string(f.src[f.offset(n.Pos()):f.offset(n.End())]) }
	n := 0
	fresh := func() string { n++; return fmt.Sprintf("mutantArg%d", n) }
	list := func(fields *ast.FieldList) (decl, use []string) {
		for _, field := range fields.List {
			names := []string{}
			for _, id := range field.Names {
				if id.Name == "_" {
					names = append(names, fresh())
				} else {
					names = append(names, id.Name)
				}
			}
			if len(names) == 0 {
				names = append(names, fresh())
			}
			decl = append(decl, strings.Join(names, ", ")+" "+text(field.Type))
			if _, variadic := field.Type.(*ast.Ellipsis); variadic {
				names[len(names)-1] += "..."
			}
			use = append(use, names...)
		}
		return decl, use
	}
	var b strings.Builder
	b.WriteString("func ")
	if d.Recv != nil {
		decl, use := list(d.Recv)
		fmt.Fprintf(&b, "(%s) ", decl[0])
		recv = use[0] + "."
	}
	b.WriteString(d.Name.Name)
	typeArgs := ""
	if d.Type.TypeParams != nil {
		b.WriteString(text(d.Type.TypeParams))
		var names []string
		for _, field := range d.Type.TypeParams.List {
			for _, id := range field.Names {
				names = append(names, id.Name)
			}
		}
		typeArgs = "[" + strings.Join(names, ", ") + "]"
	}
	decl, use := list(d.Type.Params)
	b.WriteString("(" + strings.Join(decl, ", ") + ")")
	if d.Type.Results != nil {
		b.WriteString(" " + text(d.Type.Results))
	}
	return b.String(), recv, typeArgs + "(" + strings.Join(use, ", ") + ")"
}

// unbroken runs all tests with no mutant on: they have to pass, and tell how long a run takes.
func (b *build) unbroken(ctx context.Context, drawn []*mutant) error {
	b.takes = map[string]time.Duration{}
	for _, m := range drawn {
		for _, j := range m.judges {
			key := j.of(m) + " " + j.run
			if b.takes[key] != 0 {
				continue
			}
			began := time.Now()
			out, err := b.tests(ctx, j.of(m), j.run, 0, 10*time.Minute)
			if err != nil {
				return fmt.Errorf("the tests of %s fail with nothing broken: %w\n%s", key, err, out)
			}
			b.takes[key] = time.Since(began)
		}
	}
	return nil
}

// try runs the tests that could see a mutant, the nearest first.
func (b *build) try(ctx context.Context, m *mutant) error {
	for _, j := range m.judges {
		limit := 30*time.Second + 10*b.takes[j.of(m)+" "+j.run]
		_, err := b.tests(ctx, j.of(m), j.run, m.id, limit)
		var exit *exec.ExitError
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
		case errors.As(err, &exit):
			m.judged, m.killer = true, j.of(m)
			return nil
		default:
			return err
		}
	}
	m.judged = true
	return nil
}

// tests runs tests of a package with a mutant on, in the directory of that package. Tests that draw cases
// draw the same ones each time.
func (b *build) tests(ctx context.Context, pkg, run string, id int, limit time.Duration) ([]byte, error) {
	args := []string{"-test.run", run, "-test.failfast", "-test.short", "-test.timeout", limit.String()}
	if b.draws(pkg) {
		args = append(args, "-rapid.seed=1", "-rapid.nofailfile")
	}
	ctx, cancel := context.WithTimeout(ctx, limit+time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, b.binary(pkg), args...)
	cmd.Dir = filepath.Join(b.dir, pkg)
	cmd.Env = append(os.Environ(), "RELAY_MUTANT="+strconv.Itoa(id))
	return cmd.CombinedOutput()
}

// draws tells whether tests of a package draw cases at random.
func (b *build) draws(pkg string) bool {
	found, err := filepath.Glob(filepath.Join(b.dir, pkg, "*_test.go"))
	if err != nil {
		return false
	}
	return slices.ContainsFunc(found, func(path string) bool {
		src, err := os.ReadFile(path)
		return err == nil && bytes.Contains(src, []byte(`"pgregory.net/rapid"`))
	})
}
