package object

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"meshrelay/internal/panics"
	"meshrelay/internal/text"
	"meshrelay/internal/yamlpos"
	"meshrelay/upstreams/kubernetes/jsonstream"
)

const (
	// maxObject bounds one object on the wire, in bytes. The limit of etcd is 1.5 MiB, and JSON may add something.
	maxObject = 2 << 20
	// maxBuffer is the largest object after which a watch keeps its buffer, in bytes.
	maxBuffer = 64 << 10
	// maxValues bounds the values of each field of an object. A decoded value takes a hundred times the two
	// bytes of an empty one.
	maxValues = 200_000
	// maxParts bounds the objects of one response that is a list, and its fields.
	maxParts = 1_000_000
	// maxName bounds a name and a namespace, in bytes. Kubernetes has the same limit. maxVersion bounds a
	// resourceVersion, which has 20 digits. maxContinue bounds the token for the next page of a list.
	maxName, maxVersion, maxContinue = 253, 1 << 10, 8 << 10
	// maxEntries bounds the labels and the annotations of an object.
	maxEntries = 4096
)

// lastApplied is the annotation in which kubectl keeps a copy of the object that was applied.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// Decoder decodes the objects of one response. It implements watch.Decoder.
type Decoder struct {
	// Prepare, unless nil, is called with each object before Admit.
	Prepare func(*Object)
	// Admit, unless nil, is called with each object that is not Unselected. Its error ends the response.
	Admit func(*Object) error
	// Owners has objects keep their UID and managedFields.
	Owners bool

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
		Name              string  `json:"name"`
		Namespace         string  `json:"namespace"`
		ResourceVersion   string  `json:"resourceVersion"`
		CreationTimestamp string  `json:"creationTimestamp"`
		DeletionTimestamp *string `json:"deletionTimestamp"`
		Labels            entries `json:"labels"`
		Annotations       entries `json:"annotations"`
		UID               option  `json:"uid"`
		ManagedFields     option  `json:"managedFields"`
	} `json:"metadata"`
	Spec   json.RawMessage `json:"spec"`
	Status json.RawMessage `json:"status"`
	Data   json.RawMessage `json:"data"`
	// An EndpointSlice has these in place of a spec.
	AddressType json.RawMessage `json:"addressType"`
	Endpoints   json.RawMessage `json:"endpoints"`
	Ports       json.RawMessage `json:"ports"`
	// These are fields of a metav1.Status.
	Code    json.RawMessage `json:"code"`
	Reason  json.RawMessage `json:"reason"`
	Message json.RawMessage `json:"message"`
	Details json.RawMessage `json:"details"`
}

// option is a value that is kept only if it is wanted.
type option struct {
	wanted bool
	value  json.RawMessage
}

// UnmarshalJSON implements json.Unmarshaler.
func (o *option) UnmarshalJSON(value []byte) error {
	if o.wanted {
		o.value = bytes.Clone(value)
	}
	return nil
}

// want has the envelope keep the owners of the object.
func (e *envelope) want(owners bool) {
	e.Metadata.UID.wanted, e.Metadata.ManagedFields.wanted = owners, owners
}

// entries has labels or annotations, and the mistake in them.
type entries struct {
	of  map[string]string
	err error
}

// UnmarshalJSON implements json.Unmarshaler. It counts the entries before it decodes them.
func (e *entries) UnmarshalJSON(value []byte) error {
	*e = entries{err: yamlpos.CheckJSON(value, maxEntries+1)}
	if e.err == nil {
		e.err = json.Unmarshal(value, &e.of)
	}
	return nil
}

// value decodes the next value. A field of a wrong type is not an error: wrong has the mistake in the first
// such field.
func (d *Decoder) value(to any) (wrong, err error) {
	err = d.json.Decode(to)
	if field, is := errors.AsType[*json.UnmarshalTypeError](err); is {
		return wrongType(strings.TrimPrefix(field.Field, "object."), field), nil
	}
	return nil, err
}

// wrongType returns err as the mistake in a field, nil for none.
func wrongType(path string, err error) error {
	if err == nil {
		return nil
	}
	if field, is := errors.AsType[*json.UnmarshalTypeError](err); is {
		return fmt.Errorf("%s: the value is a %s, not a %s", text.Abbreviate(path), text.Abbreviate(field.Value), field.Type)
	}
	return fmt.Errorf("%s: %w", path, err)
}

// Decode implements watch.Decoder. It returns io.EOF at the end of the stream, and a panic as an error: client-go
// calls the decoder in its own goroutines.
func (d *Decoder) Decode() (event watch.EventType, o runtime.Object, err error) {
	err = panics.Contain(func() (err error) { event, o, err = d.next(); return err })
	return event, o, err
}

func (d *Decoder) next() (event watch.EventType, o runtime.Object, err error) {
	var e struct {
		Type   watch.EventType `json:"type"`
		Object envelope        `json:"object"`
	}
	e.Object.want(d.Owners)
	wrong, err := d.value(&e)
	if err != nil {
		return "", nil, err
	}
	d.json.Renew(maxBuffer)
	switch m := &e.Object.Metadata; e.Type {
	case watch.Bookmark:
		return e.Type, &Object{ObjectMeta: metav1.ObjectMeta{ResourceVersion: m.ResourceVersion, Annotations: m.Annotations.of}}, tooLong("resourceVersion", m.ResourceVersion, maxVersion)
	case watch.Added, watch.Modified, watch.Deleted:
		o, err := d.object(&e.Object, wrong)
		return e.Type, o, err
	case watch.Error:
		return e.Type, e.Object.failure(), nil // this is how an expired watch ends
	}
	return "", nil, fmt.Errorf("the server has sent an event of the unknown type %q", text.Abbreviate(string(e.Type)))
}

// sliceSpec returns the fields of an EndpointSlice as a spec.
func (e *envelope) sliceSpec() []byte {
	orNone := func(value []byte) []byte {
		if len(value) == 0 {
			return []byte("null")
		}
		return value
	}
	return fmt.Appendf(nil, `{"addressType":%s,"endpoints":%s,"ports":%s}`, e.AddressType, orNone(e.Endpoints), orNone(e.Ports))
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

// tooLong returns an error for a field of the metadata with more than most bytes. No API server sends such a field.
func tooLong(field, value string, most int) error {
	if len(value) > most {
		return fmt.Errorf("the server has sent a metadata.%s of %d bytes: want %d at most", field, len(value), most)
	}
	return nil
}

// maxUID bounds a UID, in bytes. Kubernetes makes UUIDs.
const maxUID = 128

// own sets the UID and the managers.
func (o *Object) own(uid, managers []byte) error {
	var text string
	if err := json.Unmarshal(uid, &text); err != nil || text == "" || len(text) > maxUID {
		return fmt.Errorf("metadata.uid is not a text of 1 to %d bytes", maxUID)
	}
	o.UID = types.UID(text)
	if err := yamlpos.CheckJSON(managers, maxValues); err != nil {
		return wrongType("metadata.managedFields", err)
	}
	if len(managers) == 0 {
		return nil
	}
	return wrongType("metadata.managedFields", json.Unmarshal(managers, &o.ManagedFields))
}

// object returns the object of an envelope. It fails only for an object without a name, or with a name, a namespace
// or a resourceVersion that is too long. Other mistakes are in the object's Err, and the intake refuses the object
// by name.
func (d *Decoder) object(e *envelope, wrong error) (*Object, error) {
	m := &e.Metadata
	o := &Object{Spec: e.Spec, Status: e.Status, Data: e.Data}
	if len(e.AddressType) > 0 {
		o.Spec = e.sliceSpec()
	}
	if m.DeletionTimestamp != nil {
		o.DeletionTimestamp = &metav1.Time{}
	}
	o.Namespace, o.Name, o.ResourceVersion, o.Labels, o.Annotations = m.Namespace, m.Name, m.ResourceVersion, m.Labels.of, m.Annotations.of
	if o.Name == "" {
		return nil, errors.New("the server has sent an object without a name")
	}
	if err := cmp.Or(tooLong("name", m.Name, maxName), tooLong("namespace", m.Namespace, maxName), tooLong("resourceVersion", m.ResourceVersion, maxVersion)); err != nil {
		return nil, err
	}
	var unowned, untimed error
	if d.Owners {
		unowned = o.own(m.UID.value, m.ManagedFields.value)
	}
	if m.CreationTimestamp != "" {
		at, err := time.Parse(time.RFC3339, m.CreationTimestamp)
		if o.CreationTimestamp = metav1.NewTime(at); err != nil {
			untimed = errors.New("metadata.creationTimestamp is not a time")
		}
	}
	o.Err = cmp.Or(wrong, unowned, wrongType("metadata.annotations", m.Annotations.err), wrongType("metadata.labels", m.Labels.err), untimed)
	if delete(o.Annotations, lastApplied); len(o.Annotations) == 0 {
		o.Annotations = nil
	}
	for _, value := range [...][]byte{o.Spec, e.Status, e.Data} {
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
	if d.Admit != nil && !o.Unselected {
		if err := d.Admit(o); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// List decodes a list, object by object.
func (d *Decoder) List() (*List, error) { return panics.Value(d.list) }

func (d *Decoder) list() (*List, error) {
	l, complete := &List{}, false
	err := d.json.Object(func(key string) error {
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
	if err == nil {
		err = cmp.Or(tooLong("resourceVersion", l.ResourceVersion, maxVersion), tooLong("continue", l.Continue, maxContinue))
	}
	return l, err
}

// item decodes an object of a list.
func (d *Decoder) item(l *List) error {
	var e envelope
	e.want(d.Owners)
	wrong, err := d.value(&e)
	if err != nil {
		return err
	}
	o, err := d.object(&e, wrong)
	if err == nil && !o.Unselected {
		l.Items = append(l.Items, o)
	}
	return err
}
