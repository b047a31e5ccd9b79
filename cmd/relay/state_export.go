package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"meshrelay/config"
	"meshrelay/internal/kube"
	"meshrelay/internal/printer"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams/file"
)

const (
	// maxExportBytes is how large a file becomes before another is begun. A file upstream
	// reads 16 MiB.
	maxExportBytes = 8 << 20
	// maxUnfaithful bounds the resources that are named because they can not be exported.
	maxUnfaithful = 20
)

func newStateExport() *cobra.Command {
	var access stateAccess
	var upstream, out string
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write what is kept as YAML that a file upstream reads",
		Long: `Write what is kept as Kubernetes YAML, as the relay holds it: after its rules for the
upstream. With -o it becomes a directory for each upstream, and a relay.yaml with which a
relay serves the same merged view from them. The order of the upstreams, the merge rules,
views and listeners are those of the config file, if one is given; without one the order is
that of the names. Without -o, one upstream goes to standard output.

What was written is read back and compared. Resources of which a file upstream would make
something else, such as kinds that are not well known, are named, and the exit code is 1.
When a relay runs with the state it is asked for a copy over its Unix socket.`,
		Example: `  relay state export -c relay.yaml -o export
  relay serve -c export/relay.yaml
  relay state export --dir /var/lib/relay --upstream east >east.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			file, cfg, err := access.read(cmd.Context())
			if err != nil {
				return err
			}
			e := &exporter{file: file, cfg: cfg, relay: access.file, only: upstream}
			if err := e.run(cmd.OutOrStdout(), out); err != nil {
				return errors.Join(err, damage(file))
			}
			return errors.Join(append(e.problems(), damage(file))...)
		},
	}
	access.readFlags(cmd)
	cmd.Flags().StringVar(&upstream, "upstream", "", "export this `upstream` only")
	cmd.Flags().StringVarP(&out, "output", "o", "", "`directory` to write to, which must be empty or not there")
	return cmd
}

// exporter writes a state as files.
type exporter struct {
	file  *state.File
	cfg   *config.Config // nil without one
	relay string         // the config's path
	only  string         // the one upstream that is wanted; empty: all

	unfaithful      []error // at most maxUnfaithful
	unfaithfulCount int
}

func (e *exporter) lose(key mirror.Key, source string, why error) {
	if e.unfaithfulCount++; len(e.unfaithful) < maxUnfaithful {
		e.unfaithful = append(e.unfaithful, fmt.Errorf("upstream %s: %s: %w", source, key, why))
	}
}

func (e *exporter) problems() (all []error) {
	if e.cfg != nil && e.only == "" && e.file.Damage != "" {
		for _, u := range e.cfg.Upstreams {
			if !slices.ContainsFunc(e.file.Sources, func(s state.Contents) bool { return s.Name == u.Name }) {
				all = append(all, fmt.Errorf("upstream %s: nothing of it was found", u.Name))
			}
		}
	}
	if e.unfaithfulCount == 0 {
		return all
	}
	all = append(all, e.unfaithful...)
	return append(all, fmt.Errorf("%s of the state %s not, or not the same, in what was exported",
		printer.Count(e.unfaithfulCount, "resource"), printer.Agree(e.unfaithfulCount, "is", "are")))
}

func (e *exporter) run(stdout io.Writer, out string) error {
	sources := e.inOrder()
	if e.only != "" {
		sources = slices.DeleteFunc(sources, func(s state.Contents) bool { return s.Name != e.only })
		if len(sources) == 0 {
			return noUpstream(e.file, e.only)
		}
	}
	switch {
	case out != "" && len(sources) == 0:
		return fmt.Errorf("there is nothing of any upstream in %s: nothing was written", e.file.Path)
	case out != "":
		return e.directory(stdout, sources, out)
	case e.only == "":
		return errors.New("say where to, with -o DIR, or which upstream is to go to standard output, with --upstream NAME")
	}
	first := true
	for _, r := range e.inSendingOrder(&sources[0]) {
		doc, err := document(r)
		if err != nil {
			e.lose(r.Key(), sources[0].Name, err)
			continue
		}
		if !first {
			doc = slices.Concat([]byte("---\n"), doc)
		}
		first = false
		if _, err := stdout.Write(doc); err != nil {
			return err
		}
	}
	return nil
}

// inOrder returns the upstreams in the order of the config, also those of which nothing is
// kept, and those that it does not have behind them. Of a damaged state it is not known of
// which ones nothing was kept, and only those that were found are returned.
func (e *exporter) inOrder() []state.Contents {
	sources := slices.Clone(e.file.Sources)
	if e.cfg == nil {
		return sources
	}
	for _, u := range e.cfg.Upstreams {
		if e.only == "" && e.file.Damage == "" && !slices.ContainsFunc(sources, func(s state.Contents) bool { return s.Name == u.Name }) {
			sources = append(sources, state.Contents{Name: u.Name})
		}
	}
	place := func(s state.Contents) int {
		i := slices.IndexFunc(e.cfg.Upstreams, func(u config.Upstream) bool { return u.Name == s.Name })
		if i < 0 {
			return len(e.cfg.Upstreams)
		}
		return i
	}
	slices.SortStableFunc(sources, func(a, b state.Contents) int { return cmp.Compare(place(a), place(b)) })
	return sources
}

// inSendingOrder returns the resources that a file can have, and notes the others.
func (e *exporter) inSendingOrder(s *state.Contents) (out []*mirror.Resource) {
	for i := range s.Records {
		r := s.Records[i].Resource
		if _, known := mirror.LookupKind(r.Kind()); !known {
			e.lose(r.Key(), s.Name, errors.New("its kind is none that a file upstream reads"))
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
	b, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	return kube.YAML(b)
}

// directory writes upstreams to a directory, and a config to serve them with.
func (e *exporter) directory(stdout io.Writer, sources []state.Contents, out string) error {
	if err := os.MkdirAll(out, 0o700); err != nil {
		return err
	}
	if entries, err := os.ReadDir(out); err != nil {
		return err
	} else if len(entries) > 0 {
		return fmt.Errorf("%s is not empty: name another directory", out)
	}
	resources := 0
	var written []exportedUpstream
	for i := range sources {
		s := &sources[i]
		if !state.IsName(s.Name) {
			return fmt.Errorf("%.100q is no name of an upstream: the file was not written by a relay", s.Name)
		}
		dir := fmt.Sprintf("%02d-%s", i+1, s.Name)
		all := e.inSendingOrder(s)
		if err := e.write(filepath.Join(out, dir), s.Name, all); err != nil {
			return err
		}
		if err := e.compare(filepath.Join(out, dir), s.Name, all); err != nil {
			return err
		}
		resources += len(all)
		written = append(written, e.upstream(s, dir))
	}
	if err := e.config(filepath.Join(out, "relay.yaml"), sources, written); err != nil {
		return err
	}
	_, err := fmt.Fprintf(stdout, "%s: %s, %s\n", out, printer.Count(len(written), "upstream"), printer.Count(resources, "resource"))
	return err
}

// write writes resources to a directory: a file for each kind, or several when it is large.
func (e *exporter) write(dir, source string, all []*mirror.Resource) error {
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
			e.lose(r.Key(), source, err)
			continue
		}
		if buf.Len() > 0 {
			buf.WriteString("---\n")
		}
		buf.Write(doc)
	}
	return flush()
}

// compare reads back what was written, and notes what has become something else.
func (e *exporter) compare(dir, source string, all []*mirror.Resource) error {
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
			e.lose(r.Key(), source, errors.New("it is not read back"))
		case !sameObject(r, got):
			e.lose(r.Key(), source, errors.New("it is another one when it is read back"))
		}
	}
	for key := range byKey {
		e.lose(key, source, errors.New("it is read back, and the state does not have it"))
	}
	for _, p := range refused {
		e.unfaithful = append(e.unfaithful, fmt.Errorf("%s: %s", p.Resource, p.Reason))
	}
	return nil
}

// sameObject reports whether two resources are the same to people: they may be encoded
// differently.
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
	File      config.File `yaml:"file"`
	// Rewrite leaves alone what the relay has reshaped already.
	Rewrite struct {
		ShortHosts  string `yaml:"shortHosts"`
		Annotations struct {
			Remove []string `yaml:"remove"`
		} `yaml:"annotations"`
	} `yaml:"rewrite"`
}

func (e *exporter) upstream(s *state.Contents, dir string) exportedUpstream {
	u := exportedUpstream{Name: s.Name, File: config.File{Path: dir}}
	u.Rewrite.ShortHosts, u.Rewrite.Annotations.Remove = config.ShortHostsKeep, []string{}
	u.ClusterID, _ = origin(s.Records)
	if e.cfg != nil {
		for _, c := range e.cfg.Upstreams {
			if c.Name == s.Name {
				u.ClusterID = c.ClusterID
			}
		}
	}
	return u
}

// origin returns the cluster that most of the resources of an upstream come from, and the
// relay that holds them, as far as they tell: empty when they do not.
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
func (e *exporter) config(path string, sources []state.Contents, written []exportedUpstream) error {
	out := exportedConfig{Upstreams: written}
	comment := "# Written by \"relay state export\" on " + time.Now().UTC().Format(time.RFC3339) + ".\n"
	if e.file.Damage != "" {
		comment += "# The state was damaged, and this is what was whole in it: there may have been more.\n"
	}
	if c := e.cfg; c != nil && e.only == "" {
		comment += "# Merge rules, views, listeners and provenance are those of " + strings.Join(strings.Fields(filepath.Base(e.relay)), " ") + ".\n"
		out.Node = map[string]string{"id": c.Node.ID, "clusterID": c.Node.ClusterID}
		out.Merge, out.Views, out.Downstream, out.Admin = c.Merge, c.Views, c.Downstream, &c.Admin
		out.Provenance = map[string]any{"annotations": c.Provenance.Annotations, "relay": c.Provenance.Relay, "maxHops": c.Provenance.MaxHops}
	} else {
		if len(sources) > 1 {
			comment += "# The order of the upstreams, which is their priority, is that of their names: put it right.\n"
		}
		relay := ""
		for i := range sources {
			if relay == "" {
				_, relay = origin(sources[i].Records)
			}
		}
		// What tells nothing of its way keeps doing so: the annotation is part of the content.
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
	if _, err := config.Load(path); err != nil {
		return fmt.Errorf("what was written to %s is not a config that can be used: %w", path, err)
	}
	return nil
}
