package upstreams

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"

	"meshrelay/mirror"
)

// maxFileBytes bounds a file of configs.
const maxFileBytes = 64 << 20

// object is a Kubernetes-style object.
type object struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   objectMeta     `json:"metadata"`
	Spec       map[string]any `json:"spec"`
	Items      []any          `json:"items"`
}

// objectMeta is the part of an object's metadata that is relayed.
type objectMeta struct {
	Name              string            `json:"name"`
	Namespace         string            `json:"namespace"`
	Labels            map[string]string `json:"labels"`
	Annotations       map[string]string `json:"annotations"`
	CreationTimestamp string            `json:"creationTimestamp"`
	ResourceVersion   string            `json:"resourceVersion"`
}

// parsed is what a file says.
type parsed struct {
	resources []*mirror.Resource
	lines     []int // where each resource begins
	problems  []Refusal
}

func (p *parsed) problem(path string, line int, what, format string, args ...any) {
	where := fmt.Sprintf("%s:%d", path, line)
	if what != "" {
		where += " " + what
	}
	p.problems = append(p.problems, Refusal{Resource: where, Reason: fmt.Sprintf(format, args...)})
}

func readFile(path, source string) (*parsed, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFileBytes {
		return nil, fmt.Errorf("%s: %d bytes: a file may have %d", path, info.Size(), maxFileBytes)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseDocuments(path, data, source), nil
}

// parseDocuments reads the documents of a YAML (or JSON) file. Each is judged by
// itself: what is wrong with one is a problem that names file and line, and the
// others are read all the same.
func parseDocuments(path string, data []byte, source string) *parsed {
	p := &parsed{}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		line, msg := yamlError(err, 1)
		p.problem(path, line, "", "the file is not YAML: %s", msg)
		return p
	}
	for _, doc := range file.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.NullType || doc.Body.Type() == ast.CommentType {
			continue
		}
		p.document(path, doc.Body, source)
	}
	return p
}

func yamlError(err error, line int) (int, string) {
	var e yaml.Error
	if errors.As(err, &e) && e.GetToken() != nil {
		return e.GetToken().Position.Line, e.GetMessage()
	}
	return line, err.Error()
}

func (p *parsed) document(path string, body ast.Node, source string) {
	line := firstLine(body)
	var raw any
	if err := yaml.NodeToValue(body, &raw); err != nil {
		at, msg := yamlError(err, line)
		p.problem(path, at, "", "the document does not decode: %s", msg)
		return
	}
	p.value(path, line, body, raw, source)
}

func (p *parsed) value(path string, line int, body ast.Node, raw any, source string) {
	fields, ok := raw.(map[string]any)
	if !ok {
		p.problem(path, line, "", "the document is not a Kubernetes object: it needs apiVersion, kind, metadata and spec")
		return
	}
	// By way of JSON, as kubectl does, so that the usual names and types hold.
	encoded, err := json.Marshal(fields)
	var o object
	if err == nil {
		err = json.Unmarshal(encoded, &o)
	}
	if err != nil {
		p.problem(path, line, "", "the document does not decode: %v", err)
		return
	}
	if strings.HasSuffix(o.Kind, "List") && o.Items != nil {
		items := itemNodes(body)
		for i, item := range o.Items {
			at, node := line, body
			if i < len(items) {
				at, node = firstLine(items[i]), items[i]
			}
			p.value(path, at, node, item, source)
		}
		return
	}
	what := strings.TrimSpace(o.Kind + " " + strings.TrimPrefix(o.Metadata.Namespace+"/"+o.Metadata.Name, "/"))
	for _, field := range sortedKeys(fields) {
		switch field {
		case "apiVersion", "kind", "metadata", "spec", "status":
		default:
			p.problem(path, lineOf(body, field, line), what, "unknown field %q: an object has apiVersion, kind, metadata and spec", field)
			return
		}
	}
	r, badField, err := o.resource(source)
	if err != nil {
		if badField != "" {
			line = lineOf(body, badField, line)
		}
		p.problem(path, line, what, "%v", err)
		return
	}
	p.resources = append(p.resources, r)
	p.lines = append(p.lines, line)
}

var unknownField = regexp.MustCompile(`unknown field "([^"]+)"`)

// resource builds the resource that the object describes. badField is the field that
// an error is about, where that is known.
func (o *object) resource(source string) (r *mirror.Resource, badField string, err error) {
	info, err := o.kind()
	if err != nil {
		return nil, "kind", err
	}
	if info.Kind == mirror.MeshConfig {
		o.Metadata.Name, o.Metadata.Namespace = mirror.MeshConfigName, ""
	}
	switch {
	case o.Metadata.Name == "":
		return nil, "metadata", errors.New("metadata.name is missing")
	case info.ClusterScoped:
		o.Metadata.Namespace = ""
	case o.Metadata.Namespace == "" && info.Kind != mirror.MeshConfig:
		o.Metadata.Namespace = "default"
	}
	var created time.Time
	if s := o.Metadata.CreationTimestamp; s != "" {
		if created, err = time.Parse(time.RFC3339, s); err != nil {
			return nil, "creationTimestamp", fmt.Errorf("metadata.creationTimestamp: %q is not a time like 2024-01-31T10:00:00Z", s)
		}
	}
	spec, err := json.Marshal(o.Spec)
	if err != nil {
		return nil, "spec", err
	}
	if o.Spec == nil {
		spec = []byte("{}")
	}
	body := info.NewBody()
	if err := protojson.Unmarshal(spec, body); err != nil {
		if m := unknownField.FindStringSubmatch(err.Error()); m != nil {
			return nil, m[1], fmt.Errorf("spec: unknown field %q: check its spelling and indentation", m[1])
		}
		// The position in the error is one in the JSON form, which nobody has seen.
		msg := regexp.MustCompile(`^proto:\s*(\(line \d+:\d+\):)?\s*`).ReplaceAllString(err.Error(), "")
		return nil, "spec", fmt.Errorf("spec: %s", msg)
	}
	packed, err := anypb.New(body)
	if err != nil {
		return nil, "spec", err
	}
	r, err = mirror.New(mirror.Spec{
		Key:    mirror.Key{Kind: info.Kind, Namespace: o.Metadata.Namespace, Name: o.Metadata.Name},
		Labels: o.Metadata.Labels, Annotations: o.Metadata.Annotations,
		CreateTime: created, Source: source, SourceVersion: o.Metadata.ResourceVersion, Body: packed,
	})
	return r, "metadata", err
}

func (o *object) kind() (*mirror.KindInfo, error) {
	group, version, ok := strings.Cut(o.APIVersion, "/")
	if !ok {
		group, version = "", o.APIVersion
	}
	if group == "core" {
		group = ""
	}
	info, known := mirror.LookupKind(mirror.Kind{Group: group, Kind: o.Kind})
	if !known {
		return nil, fmt.Errorf("%s %s is not a kind that can be relayed from a file: it takes Istio's and Gateway API kinds", o.APIVersion, o.Kind)
	}
	for _, v := range info.Versions {
		if v == version {
			return info, nil
		}
	}
	return nil, fmt.Errorf("%s has no version %q: it has %s", info.Kind, version, strings.Join(info.Versions, ", "))
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// firstLine is the line on which a node begins.
func firstLine(n ast.Node) int {
	switch n := n.(type) {
	case *ast.MappingNode:
		if len(n.Values) > 0 {
			return firstLine(n.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return firstLine(n.Key)
	}
	if t := n.GetToken(); t != nil {
		return t.Position.Line
	}
	return 1
}

// lineOf returns the line of the first key of that name in a document.
func lineOf(body ast.Node, key string, otherwise int) int {
	if i := strings.LastIndexByte(key, '.'); i >= 0 {
		key = key[i+1:]
	}
	found := 0
	ast.Walk(visitor(func(n ast.Node) bool {
		if mv, ok := n.(*ast.MappingValueNode); ok && found == 0 && mv.Key.String() == key {
			found = firstLine(mv.Key)
		}
		return found == 0
	}), body)
	if found == 0 {
		return otherwise
	}
	return found
}

type visitor func(ast.Node) bool

func (v visitor) Visit(n ast.Node) ast.Visitor {
	if v(n) {
		return v
	}
	return nil
}

// itemNodes returns the elements of a List object's items.
func itemNodes(body ast.Node) (items []ast.Node) {
	ast.Walk(visitor(func(n ast.Node) bool {
		mv, ok := n.(*ast.MappingValueNode)
		if ok && items == nil && mv.Key.String() == "items" {
			if seq, ok := mv.Value.(*ast.SequenceNode); ok {
				items = seq.Values
			}
		}
		return items == nil
	}), body)
	return items
}
