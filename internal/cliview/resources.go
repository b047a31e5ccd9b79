package cliview

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"meshrelay/internal/kube"
	"meshrelay/internal/visible"
	"meshrelay/mirror"
)

// Format is a form of output.
type Format string

// The formats.
const (
	Table Format = "table"
	YAML  Format = "yaml"
	JSON  Format = "json"
	Name  Format = "name"
)

// Group is resources of one kind.
type Group struct {
	// Kind is how the kind stands before a name: "serviceentry.networking.istio.io".
	Kind string
	// Version is the API version in which the resources are shown.
	Version   string
	Resources []*mirror.Resource
}

// ResourceOptions are how to print resources.
type ResourceOptions struct {
	Format Format
	// Namespaces adds the column NAMESPACE to tables.
	Namespaces bool
	// Kinds puts the kind before the names in tables.
	Kinds bool
	// Single prints one JSON object instead of a list of one.
	Single bool
	// Now is what ages are counted from.
	Now time.Time
}

// Resources writes groups of resources. Empty ones are left out.
func Resources(w io.Writer, groups []Group, o ResourceOptions) error {
	out := bufio.NewWriterSize(w, 64<<10)
	var err error
	switch o.Format {
	case Table:
		err = printTables(out, groups, o)
	case Name:
		err = eachResource(groups, func(g *Group, r *mirror.Resource) error {
			_, err := fmt.Fprintln(out, Clean(g.Kind+"/"+r.Key().Name))
			return err
		})
	case YAML:
		n := 0
		err = eachResource(groups, func(g *Group, r *mirror.Resource) error {
			if n++; n > 1 {
				if _, err := out.WriteString("---\n"); err != nil {
					return err
				}
			}
			return writeYAML(out, g, r)
		})
	case JSON:
		err = printJSON(out, groups, o)
	}
	if err != nil {
		return err
	}
	return out.Flush()
}

func eachResource(groups []Group, f func(*Group, *mirror.Resource) error) error {
	for i := range groups {
		for _, r := range groups[i].Resources {
			if err := f(&groups[i], r); err != nil {
				return err
			}
		}
	}
	return nil
}

func printTables(w io.Writer, groups []Group, o ResourceOptions) error {
	printed := 0
	for i := range groups {
		g := &groups[i]
		if len(g.Resources) == 0 {
			continue
		}
		if printed++; printed > 1 {
			fmt.Fprintln(w)
		}
		rows := [][]string{header(o)}
		for _, r := range g.Resources {
			rows = append(rows, cells(g, r, o, o.Now))
		}
		if err := new(table).write(w, rows); err != nil {
			return err
		}
	}
	return nil
}

// header returns the titles of a table.
func header(o ResourceOptions) []string {
	if o.Namespaces {
		return []string{"NAMESPACE", "NAME", "VERSION", "AGE"}
	}
	return []string{"NAME", "VERSION", "AGE"}
}

func cells(g *Group, r *mirror.Resource, o ResourceOptions, now time.Time) []string {
	name := r.Key().Name
	if o.Kinds {
		name = g.Kind + "/" + name
	}
	age := "<unknown>"
	if r.Kind() != mirror.MeshConfig {
		if created := r.Metadata().CreateTime; !created.IsZero() {
			age = Age(now.Sub(created))
		}
	}
	row := []string{name, shortVersion(r.SourceVersion()), age}
	if o.Namespaces {
		row = append([]string{r.Namespace()}, row...)
	}
	return row
}

// Clean replaces characters that could control the terminal. It is for text from servers and
// clients.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// CleanLines is Clean for text of several lines.
func CleanLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = strings.ReplaceAll(Clean(strings.ReplaceAll(l, "\t", "    ")), "\r", "?")
	}
	return strings.Join(lines, "\n")
}

// shortVersion returns the end of a version, where all kinds of versions differ: numbers of
// Kubernetes, hashes of relays, and times of istiods that read files.
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

func toObject(g *Group, r *mirror.Resource) (*kube.Object, error) {
	return kube.New(r, g.Version, r.SourceVersion())
}

func writeYAML(w io.Writer, g *Group, r *mirror.Resource) error {
	o, err := toObject(g, r)
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

// printJSON writes a list as kubectl does, or one object.
func printJSON(w io.Writer, groups []Group, o ResourceOptions) error {
	objects := []*kube.Object{}
	err := eachResource(groups, func(g *Group, r *mirror.Resource) error {
		o, err := toObject(g, r)
		objects = append(objects, o)
		return err
	})
	if err != nil {
		return err
	}
	enc := json.NewEncoder(visible.JSONWriter(w))
	enc.SetIndent("", "    ")
	if o.Single && len(objects) == 1 {
		return enc.Encode(objects[0])
	}
	return enc.Encode(struct {
		APIVersion string         `json:"apiVersion"`
		Kind       string         `json:"kind"`
		Items      []*kube.Object `json:"items"`
	}{"v1", "List", objects})
}
