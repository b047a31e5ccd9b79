// Package stateio exports the state of a relay as YAML, and imports YAML into it.
//
// The package must not know how the state is stored, or what commands there are.
package stateio

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"meshrelay/config"
	"meshrelay/internal/kube"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams/file"
)

const (
	// maxExportBytes is the size at which another file begins. A file upstream reads 16 MiB.
	maxExportBytes = 8 << 20
	// maxUnfaithful bounds the resources that are named because the export changes them.
	maxUnfaithful = 20
)

// Export writes a state as YAML that a file upstream reads.
type Export struct {
	File *state.File
	// Config gives the order of the upstreams, and the rest of the config that is written. It
	// is nil when there is none. ConfigPath is where it comes from.
	Config     *config.Config
	ConfigPath string
	// Upstream is the only one to export; empty: all.
	Upstream string

	unfaithful      []error // at most maxUnfaithful
	unfaithfulCount int
}

// Written counts what an Export has written.
type Written struct{ Upstreams, Resources int }

// lose notes a resource that is not the same in the export.
func (e *Export) lose(key mirror.Key, source, why string) {
	if e.unfaithfulCount++; len(e.unfaithful) < maxUnfaithful {
		e.unfaithful = append(e.unfaithful, fmt.Errorf("upstream %s: %s: %s", source, key, why))
	}
}

// Problems returns what is missing from the export, or not the same in it.
func (e *Export) Problems() (all []error) {
	if e.Config != nil && e.Upstream == "" && e.File.Damage != "" {
		for _, u := range e.Config.Upstreams {
			if find(e.File, u.Name) == nil {
				all = append(all, fmt.Errorf("upstream %s: nothing found in the damaged state", u.Name))
			}
		}
	}
	all = append(all, e.unfaithful...)
	if e.unfaithfulCount > 0 {
		all = append(all, fmt.Errorf("resources missing or different in the export: %d", e.unfaithfulCount))
	}
	return append(all, Damage(e.File))
}

// find returns the content of an upstream, nil without any.
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

// NoUpstream returns the error for an upstream that a state does not have.
func NoUpstream(file *state.File, upstream string) error {
	var names []string
	for _, s := range file.Sources {
		names = append(names, s.Name)
	}
	return fmt.Errorf("%s has no upstream %q: it has %s", file.Path, upstream, cmp.Or(strings.Join(names, ", "), "none"))
}

// sources returns the upstreams to export.
func (e *Export) sources() ([]state.Contents, error) {
	if e.Upstream != "" {
		s := find(e.File, e.Upstream)
		if s == nil {
			return nil, NoUpstream(e.File, e.Upstream)
		}
		return []state.Contents{*s}, nil
	}
	return e.inOrder(), nil
}

// Stream writes the one upstream to w.
func (e *Export) Stream(w io.Writer) error {
	sources, err := e.sources()
	if err != nil {
		return err
	}
	first := true
	for _, r := range e.exportable(&sources[0]) {
		doc, err := document(r)
		if err != nil {
			e.lose(r.Key(), sources[0].Name, err.Error())
			continue
		}
		if !first {
			doc = slices.Concat([]byte("---\n"), doc)
		}
		first = false
		if _, err := w.Write(doc); err != nil {
			return err
		}
	}
	return nil
}

// inOrder returns the upstreams in the order of the config, and behind them those that the
// config does not have. An upstream of the config without content is among them, unless the
// state is damaged: then its content may be lost.
func (e *Export) inOrder() []state.Contents {
	sources := slices.Clone(e.File.Sources)
	if e.Config == nil {
		return sources
	}
	for _, u := range e.Config.Upstreams {
		if e.File.Damage == "" && find(e.File, u.Name) == nil {
			sources = append(sources, state.Contents{Name: u.Name})
		}
	}
	place := func(s state.Contents) int {
		i := slices.IndexFunc(e.Config.Upstreams, func(u config.Upstream) bool { return u.Name == s.Name })
		if i < 0 {
			return len(e.Config.Upstreams)
		}
		return i
	}
	slices.SortStableFunc(sources, func(a, b state.Contents) int { return cmp.Compare(place(a), place(b)) })
	return sources
}

// exportable returns the resources that a file upstream can read, in the order of their kinds
// and names, and notes the others.
func (e *Export) exportable(s *state.Contents) (out []*mirror.Resource) {
	for i := range s.Records {
		r := s.Records[i].Resource
		if _, known := mirror.LookupKind(r.Kind()); !known {
			e.lose(r.Key(), s.Name, "file upstreams do not read this kind")
			continue
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b *mirror.Resource) int {
		return cmp.Or(mirror.CompareKinds(a.Kind(), b.Kind()), strings.Compare(a.FullName(), b.FullName()))
	})
	return out
}

// document returns a resource as YAML.
func document(r *mirror.Resource) ([]byte, error) {
	o, err := kube.New(r, "", r.SourceVersion())
	if err != nil {
		return nil, err
	}
	return o.YAML()
}

// Directory writes the upstreams to an empty or new directory, with a config file that serves
// them, and reads them back to compare.
func (e *Export) Directory(out string) (w Written, err error) {
	sources, err := e.sources()
	if err != nil {
		return w, err
	}
	if len(sources) == 0 {
		return w, fmt.Errorf("nothing was written: %s has no upstreams", e.File.Path)
	}
	if err := os.MkdirAll(out, 0o700); err != nil {
		return w, err
	}
	if entries, err := os.ReadDir(out); err != nil {
		return w, err
	} else if len(entries) > 0 {
		return w, fmt.Errorf("%s is not empty: name another directory", out)
	}
	var written []exportedUpstream
	for i := range sources {
		s := &sources[i]
		if !state.IsName(s.Name) {
			return w, fmt.Errorf("%.100q is no name of an upstream: no relay has written this file", s.Name)
		}
		dir := fmt.Sprintf("%02d-%s", i+1, s.Name)
		all := e.exportable(s)
		if err := e.write(filepath.Join(out, dir), s.Name, all); err != nil {
			return w, err
		}
		if err := e.compare(filepath.Join(out, dir), s.Name, all); err != nil {
			return w, err
		}
		w.Resources += len(all)
		written = append(written, e.upstream(s, dir))
	}
	w.Upstreams = len(written)
	return w, e.config(filepath.Join(out, "relay.yaml"), sources, written)
}

// write writes resources to a directory: a file for each kind, or several when it is large.
func (e *Export) write(dir, source string, all []*mirror.Resource) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	var buf bytes.Buffer
	var kind mirror.Kind
	n := 0
	flush := func() error {
		if buf.Len() == 0 {
			return nil
		}
		n++
		group := kind.Group
		if group == "" {
			group = "core"
		}
		name := fmt.Sprintf("%s.%s", strings.ToLower(kind.Kind), group)
		if n > 1 {
			name += fmt.Sprintf("-%d", n)
		}
		err := os.WriteFile(filepath.Join(dir, name+".yaml"), buf.Bytes(), 0o600)
		buf.Reset()
		return err
	}
	for _, r := range all {
		if r.Kind() != kind || buf.Len() > maxExportBytes {
			if err := flush(); err != nil {
				return err
			}
			if r.Kind() != kind {
				kind, n = r.Kind(), 0
			}
		}
		doc, err := document(r)
		if err != nil {
			e.lose(r.Key(), source, err.Error())
			continue
		}
		if buf.Len() > 0 {
			buf.WriteString("---\n")
		}
		buf.Write(doc)
	}
	return flush()
}

// compare reads back a directory and notes each resource that is not the same.
func (e *Export) compare(dir, source string, all []*mirror.Resource) error {
	found, refused, err := file.Read(dir, source)
	if err != nil {
		return err
	}
	byKey := make(map[mirror.Key]*mirror.Resource, len(found))
	for _, r := range found {
		byKey[r.Key()] = r
	}
	for _, r := range all {
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

// sameObject reports whether two resources are the same as YAML. Their encodings may differ.
func sameObject(a, b *mirror.Resource) bool {
	if a.Equal(b) {
		return true
	}
	x, err := document(a)
	if err != nil {
		return false
	}
	y, err := document(b)
	return err == nil && bytes.Equal(x, y)
}

// exportedConfig is a config file for what was exported.
type exportedConfig struct {
	Node       map[string]string  `yaml:"node,omitempty"`
	Upstreams  []exportedUpstream `yaml:"upstreams"`
	Merge      []config.Merge     `yaml:"merge,omitempty"`
	Views      []config.View      `yaml:"views,omitempty"`
	Provenance map[string]any     `yaml:"provenance,omitempty"`
	Downstream any                `yaml:"downstream"`
	Admin      *config.Admin      `yaml:"admin,omitempty"`
}

type exportedUpstream struct {
	Name      string      `yaml:"name"`
	ClusterID string      `yaml:"clusterID,omitempty"`
	File      file.Config `yaml:"file"`
	// Rewrite changes nothing: the relay has rewritten the resources already.
	Rewrite struct {
		ShortHosts  string `yaml:"shortHosts"`
		Annotations struct {
			Remove []string `yaml:"remove"`
		} `yaml:"annotations"`
	} `yaml:"rewrite"`
}

func (e *Export) upstream(s *state.Contents, dir string) exportedUpstream {
	u := exportedUpstream{Name: s.Name, File: file.Config{Path: dir}}
	u.Rewrite.ShortHosts, u.Rewrite.Annotations.Remove = config.ShortHostsKeep, []string{}
	u.ClusterID, _ = origin(s.Records)
	if e.Config != nil {
		for _, c := range e.Config.Upstreams {
			if c.Name == s.Name {
				u.ClusterID = c.ClusterID
			}
		}
	}
	return u
}

// origin returns the cluster that most resources of an upstream come from, and the relay that
// stamped them, both empty when unknown.
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

// config writes a config file, and checks it.
func (e *Export) config(path string, sources []state.Contents, written []exportedUpstream) error {
	out := exportedConfig{Upstreams: written}
	comment := "# Written by \"relay state export\" on " + time.Now().UTC().Format(time.RFC3339) + ".\n"
	if e.File.Damage != "" {
		comment += "# The state was damaged. These are its intact parts, there may have been more.\n"
	}
	if c := e.Config; c != nil && e.Upstream == "" {
		comment += "# Merge rules, views, listeners and provenance are those of " + strings.Join(strings.Fields(filepath.Base(e.ConfigPath)), " ") + ".\n"
		out.Node = map[string]string{"id": c.Node.ID, "clusterID": c.Node.ClusterID}
		out.Merge, out.Views, out.Downstream, out.Admin = c.Merge, c.Views, c.Downstream, &c.Admin
		out.Provenance = map[string]any{"annotations": c.Provenance.Annotations, "relay": c.Provenance.Relay, "maxHops": c.Provenance.MaxHops}
	} else {
		if len(sources) > 1 {
			comment += "# The order of the upstreams is their priority. Here it is alphabetical: correct it.\n"
		}
		relay := ""
		for i := range sources {
			if relay == "" {
				_, relay = origin(sources[i].Records)
			}
		}
		// Without a relay in the annotations none is added: they are part of the content.
		out.Provenance = map[string]any{"annotations": relay != ""}
		if relay != "" {
			out.Provenance["relay"] = relay
		}
		out.Downstream = map[string]any{"listeners": []map[string]any{{"address": "127.0.0.1:15010", "plaintext": true}}}
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
