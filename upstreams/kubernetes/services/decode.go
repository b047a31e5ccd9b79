package services

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unique"

	"meshrelay/internal/text"
	"meshrelay/internal/yamlpos"
	"meshrelay/upstreams/kubernetes/object"
)

// Input is a kind of objects on which services depend.
type Input int

// The inputs.
const (
	Services Input = iota
	Slices
	Pods
	Nodes
	Workloads // WorkloadEntries
	inputs
)

var kinds = [inputs]string{"Service", "EndpointSlice", "Pod", "Node", "WorkloadEntry"}

var decoders = [inputs]func(*object.Object) (content any, size int, err error){decodeService, decodeSlice, decodePod, decodeNode, decodeEntry}

// Name is the name of an object. Namespace is empty for Nodes.
type Name struct{ Namespace, Name string }

// Decoded is what a State needs of an object. It never changes.
type Decoded interface {
	// Size returns about how many bytes a State takes for it. Texts count for each object that has them.
	Size() int
}

type decoded struct {
	in      Input
	name    Name
	content any // *service, *slice, *workload (a pod, or a WorkloadEntry) or *node
	size    int
}

// Size implements Decoded.
func (d *decoded) Size() int { return d.size }

// overhead is about how many bytes an object takes in addition to its content, perText a text in addition to its
// bytes, and perValue a value of a list or map.
const overhead, perText, perValue = 192, 104, 64

// Decode returns what a State needs of an object. Any goroutine may call it. The result does not refer to the object.
func Decode(in Input, o *object.Object) (Decoded, error) {
	d, err := &decoded{in: in, name: Name{o.Namespace, o.Name}}, o.Err
	if strings.Contains(o.Namespace+o.Name, "/") {
		err = errors.New(`its name or namespace has a "/"`)
	}
	if err == nil {
		d.content, d.size, err = decoders[in](o)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", kinds[in], text.Abbreviate(o.FullName()), err)
	}
	d.size += overhead + 2*len(o.FullName())
	return d, nil
}

// maxValues bounds the values of a spec or status before it is decoded. An EndpointSlice has 1000 endpoints at most.
const maxValues = 100_000

// decodeField decodes a field of an object, if it has the field. It returns about the size of all its content.
func decodeField(value []byte, field string, to any) (size int, err error) {
	if len(value) == 0 {
		return 0, nil
	}
	if err = yamlpos.CheckJSON(value, maxValues); err == nil {
		err = json.Unmarshal(value, to)
	}
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		err = fmt.Errorf("%s: wrong type or out of range: %s", text.Abbreviate(wrong.Field), text.Abbreviate(wrong.Value))
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", field, err)
	}
	return len(value) + perValue*(bytes.Count(value, []byte{','})+bytes.Count(value, []byte{'{'})), nil
}

// symbol is a text that many objects share. Equal ones are equal, and in memory once.
type symbol struct{ of unique.Handle[string] }

func symbolOf(s string) symbol {
	if s == "" {
		return symbol{}
	}
	return symbol{unique.Make(s)}
}

func (s symbol) String() string {
	if s == (symbol{}) {
		return ""
	}
	return s.of.Value()
}
