// Package stateio exports the state of a relay as YAML, and imports YAML into it.
//
// The package must not know how the state is stored, or the commands that use it.
package stateio

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"meshrelay/config"
	"meshrelay/federation/rewrite"
	"meshrelay/internal/kube"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams/file"
)

const (
	// maxExportBytes is the size after which the export begins another file. A file upstream reads files of
	// up to 16 MiB.
	maxExportBytes = 8 << 20
	// maxUnfaithful is the most resources that are listed because the export changes them.
	maxUnfaithful = 20
)

// Export writes a state as YAML that a file upstream reads.
type Export struct {
	File *state.File
	// Config, which may be nil, gives the order of the upstreams and the other fields of the written config.
	// ConfigPath is its path.
	Config     *config.Config
	ConfigPath string
	// Upstream is the only upstream to export; empty means all.
	Upstream string

	unfaithful []error // at most maxUnfaithful
	lost       int     // the number of resources that differ in the export
}

// lose notes a resource that differs in the export or is missing from it.
func (e *Export) lose(key mirror.Key, source, why string) {
	if e.lost++; len(e.unfaithful) < maxUnfaithful {
		e.unfaithful = append(e.unfaithful, fmt.Errorf("upstream %s: %s: %s", source, key, why))
	}
}

// Problems returns an error for each upstream and resource that differs in the export or is missing from it.
func (e *Export) Problems() (all []error) {
	if e.Config != nil && e.Upstream == "" && e.File.Damage != "" {
		for _, u := range e.Config.Upstreams {
			if find(e.File, u.Name) == nil {
				all = append(all, fmt.Errorf("upstream %s: nothing found in the damaged state", u.Name))
			}
		}
	}
	all = append(all, e.unfaithful...)
	if e.lost > 0 {
		all = append(all, fmt.Errorf("resources missing or different in the export: %d", e.lost))
	}
	return append(all, Damage(e.File))
}

// find returns the content of an upstream, or nil.
func find(file *state.File, upstream string) *state.Contents {
	i := slices.IndexFunc(file.Sources, func(s state.Contents) bool { return s.Name == upstream })
	if i < 0 {
		return nil
	}
	return &file.Sources[i]
}

// Damage returns an error if a file is damaged.
func Damage(file *state.File) error {
	if file.Damage == "" {
		return nil
	}
	return fmt.Errorf("%s: %s: only the intact parts were read", file.Path, file.Damage)
}

// NoUpstream returns the error for an upstream that is not in the state.
func NoUpstream(file *state.File, upstream string) error {
	var names []string
	for _, s := range file.Sources {
		names = append(names, s.Name)
	}
	return fmt.Errorf("%s has no upstream %q: it has %s", file.Path, upstream, cmp.Or(strings.Join(names, ", "), "none"))
}

// sources returns the upstreams to export: first those of the config in its order, then the others. An upstream
// of the config without content is included, unless the state is damaged: then its content may be lost.
func (e *Export) sources() (sources []state.Contents, err error) {
	if e.Upstream != "" {
		if s := find(e.File, e.Upstream); s != nil {
			return []state.Contents{*s}, nil
		}
		return nil, NoUpstream(e.File, e.Upstream)
	}
	rest := slices.Clone(e.File.Sources)
	if e.Config != nil {
		for _, u := range e.Config.Upstreams {
			if s := find(e.File, u.Name); s != nil {
				sources = append(sources, *s)
			} else if e.File.Damage == "" {
				sources = append(sources, state.Contents{Name: u.Name})
			}
			rest = slices.DeleteFunc(rest, func(s state.Contents) bool { return s.Name == u.Name })
		}
	}
	if sources = append(sources, rest...); len(sources) == 0 {
		return nil, fmt.Errorf("nothing was written: %s has no upstreams", e.File.Path)
	}
	return sources, nil
}

// Stream writes the upstream e.Upstream to w.
func (e *Export) Stream(w io.Writer) error {
	sources, err := e.sources()
	if err != nil {
		return err
	}
	separator := ""
	return e.documents(&sources[0], func(_ *mirror.Resource, doc []byte) error {
		_, err := io.WriteString(w, separator+string(doc))
		separator = "---\n"
		return err
	})
}

// documents visits the resources that a file upstream can read, by kind and name. It calls lose for the others.
func (e *Export) documents(s *state.Contents, visit func(r *mirror.Resource, doc []byte) error) error {
	records := slices.SortedFunc(slices.Values(s.Records), func(x, y state.Record) int {
		a, b := x.Resource, y.Resource
		return cmp.Or(mirror.CompareKinds(a.Kind(), b.Kind()), strings.Compare(a.FullName(), b.FullName()))
	})
	for i := range records {
		r := records[i].Resource
		doc, err := document(r)
		if _, known := mirror.LookupKind(r.Kind()); !known {
			err = errors.New("file upstreams do not read this kind")
		}
		if err != nil {
			e.lose(r.Key(), s.Name, err.Error())
		} else if err := visit(r, doc); err != nil {
			return err
		}
	}
	return nil
}

// document returns a resource as YAML.
func document(r *mirror.Resource) ([]byte, error) {
	o, err := kube.New(r, "", r.SourceVersion())
	if err != nil {
		return nil, err
	}
	return o.YAML()
}

// Directory writes the upstreams to an empty or new directory, with a config file that serves them. Then it reads
// them back and compares. It returns the numbers of written upstreams and resources.
func (e *Export) Directory(out string) (upstreams, resources int, err error) {
	sources, err := e.sources()
	if err != nil {
		return 0, 0, err
	}
	if err := os.MkdirAll(out, 0o700); err != nil {
		return 0, 0, err
	}
	if entries, err := os.ReadDir(out); err != nil {
		return 0, 0, err
	} else if len(entries) > 0 {
		return 0, 0, fmt.Errorf("%s is not empty: use another directory", out)
	}
	var written []yaml.MapSlice
	for i := range sources {
		s := &sources[i]
		if !state.IsName(s.Name) {
			return 0, 0, fmt.Errorf("%.100q is not a valid upstream name: no relay has written this state", s.Name)
		}
		dir := fmt.Sprintf("%02d-%s", i+1, s.Name)
		n, err := e.write(filepath.Join(out, dir), s)
		if err != nil {
			return 0, 0, err
		}
		resources += n
		written = append(written, e.upstream(s, dir))
	}
	return len(sources), resources, e.config(filepath.Join(out, "relay.yaml"), sources, written)
}

// write writes an upstream to a directory, and compares. Each kind gets one file, or several if it is large.
func (e *Export) write(dir string, s *state.Contents) (int, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return 0, err
	}
	var written []*mirror.Resource
	var buf bytes.Buffer // the content of the current file, of the kind kind
	var kind mirror.Kind
	part := 0
	flush := func() error {
		name := strings.ToLower(kind.Kind) + "." + cmp.Or(kind.Group, "core")
		if part > 1 {
			name += fmt.Sprintf("-%d", part)
		}
		defer buf.Reset()
		return os.WriteFile(filepath.Join(dir, name+".yaml"), buf.Bytes(), 0o600)
	}
	err := e.documents(s, func(r *mirror.Resource, doc []byte) error {
		written = append(written, r)
		if buf.Len() > 0 && r.Kind() == kind && buf.Len() <= maxExportBytes {
			buf.WriteString("---\n")
			buf.Write(doc)
			return nil
		}
		if buf.Len() > 0 {
			if err := flush(); err != nil {
				return err
			}
		}
		if part++; r.Kind() != kind {
			kind, part = r.Kind(), 1
		}
		buf.Write(doc)
		return nil
	})
	if err == nil && buf.Len() > 0 {
		err = flush()
	}
	if err != nil {
		return 0, err
	}
	return len(written), e.compare(dir, s.Name, written)
}

// compare reads back a directory and calls lose for each resource that differs.
func (e *Export) compare(dir, source string, written []*mirror.Resource) error {
	found, refused, err := file.Read(dir, source, false)
	if err != nil {
		return err
	}
	byKey := make(map[mirror.Key]*mirror.Resource, len(found))
	for _, r := range found {
		byKey[r.Key()] = r
	}
	for _, r := range written {
		got := byKey[r.Key()]
		delete(byKey, r.Key())
		switch {
		case got == nil:
			e.lose(r.Key(), source, "not read back")
		case !sameObject(r, got):
			e.lose(r.Key(), source, "round trip changed it")
		}
	}
	for key := range byKey {
		e.lose(key, source, "read back, but not in the state")
	}
	for _, p := range refused {
		e.unfaithful = append(e.unfaithful, fmt.Errorf("%s: %s", p.Resource, p.Reason))
	}
	return nil
}

// sameObject reports whether two resources are equal as YAML. Their encodings may differ.
func sameObject(a, b *mirror.Resource) bool {
	if a.Equal(b) {
		return true
	}
	x, err := document(a)
	y, err2 := document(b)
	return err == nil && err2 == nil && bytes.Equal(x, y)
}

// upstream returns the config of a file upstream that reads dir. Its rewrite rules change nothing, because the
// relay has rewritten the resources already.
func (e *Export) upstream(s *state.Contents, dir string) yaml.MapSlice {
	cluster, _ := origin(s.Records)
	if c := configured(e.Config, s.Name); c != nil {
		cluster = c.ClusterID
	}
	return yaml.MapSlice{
		{Key: "name", Value: s.Name}, {Key: "clusterID", Value: cluster}, {Key: "file", Value: file.Config{Path: dir}},
		{Key: "rewrite", Value: map[string]any{"shortHosts": rewrite.ShortHostsKeep, "annotations": map[string]any{"remove": []string{}}}},
	}
}

// configured returns the config of an upstream, or nil.
func configured(cfg *config.Config, upstream string) *config.Upstream {
	if cfg != nil {
		for i := range cfg.Upstreams {
			if cfg.Upstreams[i].Name == upstream {
				return &cfg.Upstreams[i]
			}
		}
	}
	return nil
}

// origin returns the cluster from which most resources of an upstream come, and the relay in their provenance.
// Both are empty when unknown.
func origin(records []state.Record) (cluster, relay string) {
	clusters := map[string]int{}
	for i := range records {
		r := records[i].Resource
		clusters[r.Cluster()]++
		if path := r.Provenance().Path; relay == "" && len(path) > 0 {
			relay = path[len(path)-1]
		}
	}
	for name, n := range clusters {
		if best := clusters[cluster]; n > best || n == best && name < cluster {
			cluster = name
		}
	}
	return cluster, relay
}

// config writes the config file and checks it.
func (e *Export) config(path string, sources []state.Contents, upstreams []yaml.MapSlice) error {
	comment := "# Written by \"relay state export\" on " + time.Now().UTC().Format(time.RFC3339) + ".\n"
	if e.File.Damage != "" {
		comment += "# The state was damaged. These are its intact parts; others may be missing.\n"
	}
	out := yaml.MapSlice{{Key: "upstreams", Value: upstreams}}
	add := func(key string, value any) { out = append(out, yaml.MapItem{Key: key, Value: value}) }
	if c := e.Config; c != nil && e.Upstream == "" {
		comment += "# Merge rules, views, listeners and provenance are those of " + strings.Join(strings.Fields(filepath.Base(e.ConfigPath)), " ") + ".\n"
		add("node", map[string]string{"id": c.Node.ID, "clusterID": c.Node.ClusterID})
		add("merge", c.Merge)
		add("views", c.Views)
		add("provenance", map[string]any{"annotations": c.Provenance.Annotations, "relay": c.Provenance.Relay, "maxHops": c.Provenance.MaxHops})
		add("downstream", c.Downstream)
		add("admin", c.Admin)
	} else {
		if len(sources) > 1 {
			comment += "# The order of the upstreams is their priority. Here it is alphabetical: correct it.\n"
		}
		relay := ""
		for i := 0; i < len(sources) && relay == ""; i++ {
			_, relay = origin(sources[i].Records)
		}
		// If the resources name no relay, the new relay adds no annotations: they are part of the content.
		provenance := map[string]any{"annotations": relay != ""}
		if relay != "" {
			provenance["relay"] = relay
		}
		add("provenance", provenance)
		add("downstream", map[string]any{"listeners": []map[string]any{{"address": "127.0.0.1:15010", "plaintext": true}}})
	}
	b, err := yaml.Marshal(out)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, append([]byte(comment), b...), 0o600); err != nil {
		return err
	}
	if _, err := config.Load(path, &file.Config{}); err != nil {
		return fmt.Errorf("the exported config %s is invalid: %w", path, err)
	}
	return nil
}
