package cliview

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"

	"meshrelay/admin/view"
	"meshrelay/cmd/relay/internal/selection"
	"meshrelay/internal/kube"
	"meshrelay/internal/text"
	"meshrelay/mirror"
)

// Format is an output format.
type Format string

// The formats.
const (
	Table Format = "table"
	Wide  Format = "wide" // a table with more columns
	YAML  Format = "yaml"
	JSON  Format = "json"
	Name  Format = "name"
)

// ResourceOptions are options for printing resources.
type ResourceOptions struct {
	Format Format
	// Namespaces adds the column NAMESPACE to tables.
	Namespaces bool
	// Kinds puts the kind before the names in tables.
	Kinds bool
	// Single prints one resource as a JSON object instead of a list.
	Single bool
	// NoHeaders leaves out the titles of tables.
	NoHeaders bool
	// Lost reports whether the source of a resource is out of contact; nil for none.
	Lost func(*mirror.Resource) bool
}

// Tabular reports whether the format is a table.
func (o ResourceOptions) Tabular() bool { return o.Format == Table || o.Format == Wide }

// Resources writes groups of resources. It leaves out empty groups. Ages are relative to now.
func Resources(w io.Writer, groups []selection.Group, o ResourceOptions, now time.Time) error {
	if o.Format == JSON {
		return printJSON(w, groups, o.Single)
	}
	out := bufio.NewWriterSize(w, 64<<10) // Flush returns all write errors
	n := 0
	for _, g := range groups {
		t := o.table()
		for i, r := range g.Resources {
			switch n++; {
			case n == 1:
			case o.Format == YAML:
				fmt.Fprintln(out, "---")
			case o.Tabular() && i == 0 && !o.NoHeaders:
				fmt.Fprintln(out)
			}
			if err := o.print(out, t, g.Kind, r, now); err != nil {
				return err
			}
		}
		if o.Tabular() && len(g.Resources) > 0 {
			_ = t.flush(out) // see above
		}
	}
	return out.Flush()
}

// table returns a table for resources. Its first columns have the titles before.
func (o ResourceOptions) table(before ...any) *table {
	if o.Namespaces {
		before = append(before, "NAMESPACE")
	}
	titles := append(before, "NAME", "UPSTREAM", "AGE")
	if o.Format == Wide {
		titles = append(titles, "CLUSTER", "RELAYS", "VERSION")
	}
	if o.NoHeaders {
		return &table{}
	}
	return titled(titles...)
}

// print writes a resource to w, or adds it to t as a row. The cells before come first.
func (o ResourceOptions) print(w io.Writer, t *table, k selection.Kind, r *mirror.Resource, now time.Time, before ...any) (err error) {
	name := k.Name() + "/" + r.Key().Name
	switch o.Format {
	case Table, Wide:
		if name = text.Name(r.Key().Name); o.Kinds {
			name = k.Name() + "/" + name
		}
		if o.Namespaces {
			before = append(before, cmp.Or(text.Name(r.Namespace()), " ")) // empty, as kubectl prints it
		}
		age := "<unknown>"
		if created := r.Metadata().CreateTime; !created.IsZero() {
			age = view.Age(now.Sub(created))
		}
		from := r.Provenance()
		if o.Lost != nil && o.Lost(r) {
			from.Source += "*"
		}
		row := append(before, name, from.Source, age)
		if o.Format == Wide {
			row = append(row, from.Cluster, strings.Join(from.Path, ","), shortVersion(r.SourceVersion()))
		}
		t.add(row...)
	case Name:
		_, err = fmt.Fprintln(w, append(before, Clean(name))...)
	case YAML:
		o, err := toObject(k, r)
		if err != nil {
			return err
		}
		b, err := o.YAML()
		if err != nil {
			return err
		}
		_, err = w.Write(b)
		return err
	}
	return err
}

// Clean replaces characters that could control the terminal. Use it for text from servers and clients.
func Clean(s string) string { return clean(s, -1) }

// CleanLines is Clean for a text of several lines.
func CleanLines(s string) string { return clean(strings.ReplaceAll(s, "\t", "    "), '\n') }

func clean(s string, but rune) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) && r != but {
			return '?'
		}
		return r
	}, s)
}

// shortVersion returns the end of a version. All versions differ at their end: the numbers of Kubernetes, the
// hashes of relays, and the times of istiods that read files.
func shortVersion(v string) string {
	const width = 12
	if v == "" {
		return "<none>"
	}
	runes := []rune(v)
	if len(runes) <= width {
		return v
	}
	return "…" + string(runes[len(runes)-width+1:])
}

func toObject(k selection.Kind, r *mirror.Resource) (*kube.Object, error) {
	version := r.SourceVersion()
	if _, err := strconv.ParseUint(version, 10, 64); err != nil {
		version = "" // the hash of a relay: no API server would take the object
	}
	return kube.New(r, k.Version, version)
}

// printJSON writes resources as kubectl does: as a list or, with single, as one object.
func printJSON(w io.Writer, groups []selection.Group, single bool) error {
	n := 0
	for _, g := range groups {
		n += len(g.Resources)
	}
	single = single && n == 1
	const indent = "    "
	out, prefix, between := bufio.NewWriterSize(w, 64<<10), "", "" // Flush returns its errors
	if !single {
		prefix = indent + indent
		out.WriteString("{\n" + indent + `"apiVersion": "v1",` + "\n" + indent + `"kind": "List",` + "\n" + indent + `"items": [`) //nolint:errcheck // see above
	}
	for _, g := range groups {
		for _, r := range g.Resources {
			o, err := toObject(g.Kind, r)
			if err != nil {
				return err
			}
			text, err := json.MarshalIndent(o, prefix, indent)
			if err != nil {
				return err
			}
			if !single {
				fmt.Fprint(out, between, "\n", prefix)
				between = ","
			}
			out.Write(text) //nolint:errcheck // see above
		}
	}
	if !single {
		if n > 0 {
			fmt.Fprint(out, "\n", indent)
		}
		fmt.Fprint(out, "]\n}")
	}
	fmt.Fprintln(out)
	return out.Flush()
}
