package object

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"meshrelay/internal/text"
	"meshrelay/internal/yamlpos"
	"meshrelay/mirror"
	"meshrelay/upstreams/kubernetes/jsonstream"
)

const (
	// maxObject bounds one object on the wire, in bytes. The limit of etcd is 1.5 MiB.
	maxObject = 8 << 20
	// maxBuffer is the largest object after which a watch keeps its buffer, in bytes.
	maxBuffer = 64 << 10
	// maxValues bounds the values of each field of an object. A decoded value takes a hundred times the two
	// bytes of an empty one.
	maxValues = 200_000
	// maxParts bounds the objects of one response that is a list, and its fields.
	maxParts = 1_000_000
)

// lastApplied is the annotation in which kubectl keeps a copy of the object that was applied.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// Decoder decodes the objects of one response. It implements watch.Decoder.
type Decoder struct {
	// Prepare, unless nil, is called with each object before Admit.
	Prepare func(*Object)
	// Admit, unless nil, is called with each object. Its error ends the response.
	Admit func(*Object) error

	body io.Closer
	json *jsonstream.Decoder
}

// NewDecoder returns a decoder of a body, which Close closes.
func NewDecoder(body io.ReadCloser) *Decoder {
	return &Decoder{body: body, json: jsonstream.New(body, maxObject, maxParts)}
}

// Close implements watch.Decoder.
func (d *Decoder) Close() { d.body.Close() }

// envelope is the part of an object that is decoded.
type envelope struct {
	Metadata struct {
		Name              string            `json:"name"`
		Namespace         string            `json:"namespace"`
		ResourceVersion   string            `json:"resourceVersion"`
		CreationTimestamp string            `json:"creationTimestamp"`
		Labels            map[string]string `json:"labels"`
		Annotations       map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec   json.RawMessage `json:"spec"`
	Status json.RawMessage `json:"status"`
	Data   json.RawMessage `json:"data"`
	// These are fields of a metav1.Status.
	Code    json.RawMessage `json:"code"`
	Reason  json.RawMessage `json:"reason"`
	Message json.RawMessage `json:"message"`
	Details json.RawMessage `json:"details"`
}

// value decodes the next value. A field of a wrong type is not an error: wrong has the mistake in the first
// such field.
func (d *Decoder) value(to any) (wrong, err error) {
	err = d.json.Decode(to)
	var field *json.UnmarshalTypeError
	if errors.As(err, &field) {
		path := strings.TrimPrefix(field.Field, "object.")
		return fmt.Errorf("%s: the value is a %s, not a %s", text.Abbreviate(path), text.Abbreviate(field.Value), field.Type), nil
	}
	return nil, err
}

// Decode implements watch.Decoder. It returns io.EOF at the end of the stream.
func (d *Decoder) Decode() (event watch.EventType, o runtime.Object, err error) {
	defer recovered(&err)
	var e struct {
		Type   watch.EventType `json:"type"`
		Object envelope        `json:"object"`
	}
	wrong, err := d.value(&e)
	if err != nil {
		return "", nil, err
	}
	d.json.Renew(maxBuffer)
	switch m := &e.Object.Metadata; e.Type {
	case watch.Bookmark:
		return e.Type, &Object{ObjectMeta: metav1.ObjectMeta{ResourceVersion: m.ResourceVersion, Annotations: m.Annotations}}, nil
	case watch.Added, watch.Modified, watch.Deleted:
		o, err := d.object(&e.Object, wrong)
		return e.Type, o, err
	case watch.Error:
		return e.Type, e.Object.failure(), nil // this is how an expired watch ends
	}
	return "", nil, fmt.Errorf("the server has sent an event of the unknown type %q", text.Abbreviate(string(e.Type)))
}

// recovered returns a panic as an error: client-go calls the decoder in its own goroutines.
func recovered(err *error) {
	if p := mirror.Recovered(recover()); p != nil {
		*err = p
	}
}

// failure returns the metav1.Status in an envelope, if it is one.
func (e *envelope) failure() *metav1.Status {
	s := &metav1.Status{Status: metav1.StatusFailure}
	for to, value := range map[any][]byte{&s.Code: e.Code, &s.Reason: e.Reason, &s.Message: e.Message, &s.Details: e.Details} {
		if len(value) <= maxBuffer {
			_ = json.Unmarshal(value, to) // a Status may lack the field
		}
	}
	s.Message = text.Abbreviate(s.Message)
	return s
}

// object returns the object of an envelope. It fails only for an object without a name. Other mistakes are in
// the object's Err, and the intake refuses the object by name.
func (d *Decoder) object(e *envelope, wrong error) (*Object, error) {
	m := &e.Metadata
	o := &Object{Spec: e.Spec, Status: e.Status, Data: e.Data, Err: wrong}
	o.Namespace, o.Name, o.ResourceVersion, o.Labels, o.Annotations = m.Namespace, m.Name, m.ResourceVersion, m.Labels, m.Annotations
	if o.Name == "" {
		return nil, errors.New("the server has sent an object without a name")
	}
	if delete(o.Annotations, lastApplied); len(o.Annotations) == 0 {
		o.Annotations = nil
	}
	if m.CreationTimestamp != "" {
		at, err := time.Parse(time.RFC3339, m.CreationTimestamp)
		if o.CreationTimestamp = metav1.NewTime(at); err != nil && o.Err == nil {
			o.Err = errors.New("metadata.creationTimestamp is not a time")
		}
	}
	for _, value := range [...][]byte{e.Spec, e.Status, e.Data} {
		if err := yamlpos.CheckJSON(value, maxValues); err != nil {
			o.Spec, o.Status, o.Data, o.Err = nil, nil, nil, fmt.Errorf("spec, status or data: %w", err)
		}
	}
	if bytes.IndexByte(o.Spec, '\n') >= 0 {
		var line bytes.Buffer
		if err := json.Compact(&line, o.Spec); err != nil {
			return nil, err
		}
		o.Spec = line.Bytes()
	}
	if d.Prepare != nil {
		d.Prepare(o)
	}
	if d.Admit != nil {
		if err := d.Admit(o); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// List decodes a list, object by object.
func (d *Decoder) List() (l *List, err error) {
	defer recovered(&err)
	l = &List{}
	complete := false
	err = d.json.Object(func(key string) error {
		switch key {
		case "items":
			complete = true
			return d.json.Array(func() error { return d.item(l) })
		case "metadata":
			return d.json.Decode(&l.ListMeta)
		}
		return d.json.Skip()
	})
	if err == nil && (!complete || l.ResourceVersion == "") { // a proxy's answer, for example
		err = errors.New("the server has sent a list without items or without a resourceVersion")
	}
	return l, err
}

// item decodes an object of a list.
func (d *Decoder) item(l *List) error {
	var e envelope
	wrong, err := d.value(&e)
	if err != nil {
		return err
	}
	o, err := d.object(&e, wrong)
	l.Items = append(l.Items, o)
	return err
}
