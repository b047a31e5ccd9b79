package kubernetes

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/zeebo/xxh3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"meshrelay/internal/buildinfo"
	"meshrelay/internal/text"
)

// maxObject bounds one object on the wire. The limit of etcd is 1.5 MiB.
const maxObject = 8 << 20

// lastApplied is the annotation in which kubectl keeps a copy of what was applied.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// object is what is kept of an object of the server until the intake has it: no managedFields, no
// status, no copy by kubectl. It implements runtime.Object, and of metav1.Object what a reflector
// calls.
type object struct {
	metav1.Object // nil

	namespace, name, version string
	created                  time.Time
	labels, annotations      map[string]string
	spec                     []byte // JSON in one line, nil for none
	health                   *bool  // the condition Healthy of the status, nil without one
	err                      error  // why the object can not be used
	// bare: its content was not kept, because its namespace was not mirrored when it came.
	bare bool
}

// GetObjectKind implements runtime.Object.
func (*object) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object. Nobody changes an object.
func (o *object) DeepCopyObject() runtime.Object { return o }

// GetName implements metav1.Object.
func (o *object) GetName() string { return o.name }

// GetNamespace implements metav1.Object.
func (o *object) GetNamespace() string { return o.namespace }

// GetUID implements metav1.Object.
func (*object) GetUID() types.UID { return "" }

// GetResourceVersion implements metav1.Object.
func (o *object) GetResourceVersion() string { return o.version }

// GetAnnotations implements metav1.Object.
func (o *object) GetAnnotations() map[string]string { return o.annotations }

// fullName returns "namespace/name", or "/name" without a namespace, as resources have it.
func (o *object) fullName() string { return o.namespace + "/" + o.name }

// size returns about how large the resource of the object is, in bytes.
func (o *object) size() int {
	n := len(o.spec) + len(o.name) + len(o.namespace)
	for _, m := range []map[string]string{o.labels, o.annotations} {
		for k, v := range m {
			n += len(k) + len(v)
		}
	}
	return n
}

// decoderVersion is part of each digest: another version of this code, or of the messages that it
// knows, decodes anew what is on disk.
var decoderVersion = "1 " + buildinfo.Module("istio.io/api")

// digest returns a hash of all that counts of the object. The version that the server gives it
// does not: each write of a status changes it.
func (o *object) digest(settings string) xxh3.Uint128 {
	h := xxh3.New()
	write := func(s string) {
		h.WriteString(s)   //nolint:errcheck // it never fails
		h.Write([]byte{0}) //nolint:errcheck // it never fails
	}
	write(decoderVersion)
	write(settings)
	write(o.created.Format(time.RFC3339))
	for _, m := range []map[string]string{o.labels, o.annotations} {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			write(k)
			write(m[k])
		}
		write("")
	}
	if o.health != nil {
		write(fmt.Sprint(*o.health))
	}
	if o.err != nil {
		write(o.err.Error())
	}
	h.Write(o.spec) //nolint:errcheck // it never fails
	return h.Sum128()
}

// envelope is the part of an object that is read. The rest is scanned and forgotten.
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
	Status json.RawMessage `json:"status"` // of a workload, or a ClusterProfile
	Data   json.RawMessage `json:"data"`   // of a Secret
	// These are of a metav1.Status.
	Code    json.RawMessage `json:"code"`
	Reason  json.RawMessage `json:"reason"`
	Message json.RawMessage `json:"message"`
	Details json.RawMessage `json:"details"`
}

// failure returns the metav1.Status that an envelope is.
func (e *envelope) failure() *metav1.Status {
	s := &metav1.Status{Status: metav1.StatusFailure}
	for value, to := range map[*json.RawMessage]any{&e.Code: &s.Code, &e.Reason: &s.Reason, &e.Message: &s.Message, &e.Details: &s.Details} {
		_ = json.Unmarshal(*value, to) // what is missing tells less
	}
	s.Message = text.Abbreviate(s.Message)
	return s
}

// object returns the object of an envelope. Only an object without a name is an error: anything
// else that is wrong is for the intake, which refuses the object by its name.
func (e *envelope) object(wrong error) (*object, error) {
	m := &e.Metadata
	o := &object{namespace: m.Namespace, name: m.Name, version: m.ResourceVersion, annotations: m.Annotations, err: wrong}
	if len(m.Labels) > 0 {
		o.labels = m.Labels
	}
	if delete(o.annotations, lastApplied); len(o.annotations) == 0 {
		o.annotations = nil
	}
	if m.CreationTimestamp != "" {
		var err error
		if o.created, err = time.Parse(time.RFC3339, m.CreationTimestamp); err != nil && o.err == nil {
			o.err = errors.New("metadata.creationTimestamp is not a time")
		}
	}
	o.spec = e.Spec // RawMessage is a copy
	if bytes.IndexByte(o.spec, '\n') >= 0 {
		var line bytes.Buffer
		if err := json.Compact(&line, o.spec); err != nil {
			return nil, err
		}
		o.spec = line.Bytes()
	}
	if o.name == "" {
		return nil, errors.New("the server has sent an object without a name")
	}
	return o, nil
}

// part returns the part of an object that a Hub reads.
func (e *envelope) part(p Part) []byte {
	if p == Status {
		return e.Status
	}
	return e.Data
}

// healthy returns the condition Healthy of a status, nil without one.
func healthy(status json.RawMessage) *bool {
	var s struct {
		Conditions []struct{ Type, Status string } `json:"conditions"`
	}
	if len(status) == 0 || json.Unmarshal(status, &s) != nil {
		return nil
	}
	for _, c := range s.Conditions {
		if c.Type == "Healthy" {
			is := c.Status == "True"
			return &is
		}
	}
	return nil
}

// mistyped returns the error of a value of the wrong type, after which a decoder goes on, and what
// else went wrong.
func mistyped(err error) (wrong, other error) {
	if mistake := (*json.UnmarshalTypeError)(nil); errors.As(err, &mistake) {
		return fmt.Errorf("%s: the value is a %s", mistake.Field, text.Abbreviate(mistake.Value)), nil
	}
	return nil, err
}

// overhead is what an object takes in memory in addition to its content, about.
const overhead = 512

// budget bounds what the objects of one list take in memory until the intake has them, in bytes.
type budget struct {
	most int // 0 for no bound
	mu   sync.Mutex
	used int // guarded by mu
}

// reset begins another list.
func (b *budget) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used = 0
}

// take returns o, without its content where that is too much: the intake then refuses it by name,
// and keeps what it has of it. Too many objects are an error.
func (b *budget) take(o *object) error {
	if b == nil || b.most <= 0 {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used += overhead
	if n := o.size(); b.used+n <= b.most {
		b.used += n
		return nil
	}
	if b.used > 2*b.most {
		return fmt.Errorf("the server has more objects of the kind than limits.maxBytes of the upstream (%d) can ever hold", b.most)
	}
	o.spec, o.labels, o.annotations = nil, nil, nil
	o.err = errors.New("over the limit: the objects of its kind have more than limits.maxBytes")
	return nil
}

// decoder reads the objects of one response. It implements watch.Decoder.
type decoder struct {
	body     io.ReadCloser
	json     *json.Decoder
	left     int  // bytes that may be read before the next object is complete
	workload bool // the health of the objects counts
	budget   *budget
	choice   *choice
	// part, unless nil, is what is kept of an object in place of its spec.
	part *Part
}

func newDecoder(body io.ReadCloser, workload bool) *decoder {
	d := &decoder{body: body, workload: workload, left: maxObject}
	d.json = json.NewDecoder(d)
	return d
}

// Read implements io.Reader, for the decoder of JSON: it bounds what one object may have.
func (d *decoder) Read(p []byte) (int, error) {
	if d.left <= 0 {
		return 0, fmt.Errorf("the server has sent an object of more than %d MiB", maxObject>>20)
	}
	n, err := d.body.Read(p[:min(len(p), d.left)])
	d.left -= n
	return n, err
}

// Close implements watch.Decoder.
func (d *decoder) Close() { d.body.Close() }

// Decode implements watch.Decoder. It returns io.EOF at the end of the stream.
func (d *decoder) Decode() (watch.EventType, runtime.Object, error) {
	var event struct {
		Type   watch.EventType `json:"type"`
		Object envelope        `json:"object"`
	}
	d.left = maxObject
	wrong, err := mistyped(d.json.Decode(&event))
	if err != nil {
		return "", nil, err
	}
	switch event.Type {
	case watch.Bookmark:
		return event.Type, &object{version: event.Object.Metadata.ResourceVersion, annotations: event.Object.Metadata.Annotations}, nil
	case watch.Added, watch.Modified, watch.Deleted:
		o, err := d.object(&event.Object, wrong)
		return event.Type, o, err
	case watch.Error:
		return event.Type, event.Object.failure(), nil // a watch that has expired ends like this
	}
	return "", nil, fmt.Errorf("the server has sent an event of the unknown type %q", text.Abbreviate(string(event.Type)))
}

func (d *decoder) object(e *envelope, wrong error) (*object, error) {
	o, err := e.object(wrong)
	if err != nil {
		return nil, err
	}
	if !d.choice.has(o.namespace) {
		return &object{namespace: o.namespace, name: o.name, version: o.version, bare: true}, nil
	}
	if d.workload {
		o.health = healthy(e.Status)
	}
	if d.part != nil {
		o.spec = e.part(*d.part)
	}
	return o, d.budget.take(o)
}

// objects is a list of objects.
type objects struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []*object
}

// DeepCopyObject implements runtime.Object. Nobody changes a list.
func (l *objects) DeepCopyObject() runtime.Object { return l }

// list reads a list, object by object.
func (d *decoder) list() (*objects, error) {
	l := &objects{}
	if err := d.expect(json.Delim('{')); err != nil {
		return nil, err
	}
	complete := false
	for d.json.More() {
		d.left = maxObject
		key, err := d.json.Token()
		if err != nil {
			return nil, err
		}
		switch key {
		case "metadata":
			err = d.json.Decode(&l.ListMeta)
		case "items":
			complete = true
			err = d.items(l)
		default:
			var skipped json.RawMessage
			err = d.json.Decode(&skipped)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := d.expect(json.Delim('}')); err != nil {
		return nil, err
	}
	if !complete || l.ResourceVersion == "" {
		return nil, errors.New("the server has sent a list without items or without a resourceVersion") // a proxy's, perhaps
	}
	return l, nil
}

func (d *decoder) items(l *objects) error {
	token, err := d.json.Token()
	if token == nil || err != nil {
		return err // null is an empty list
	}
	if token != json.Delim('[') {
		return fmt.Errorf("the server has sent a list whose items are %s", text.Abbreviate(fmt.Sprint(token)))
	}
	for d.json.More() {
		var e envelope
		d.left = maxObject
		wrong, err := mistyped(d.json.Decode(&e))
		if err != nil {
			return err
		}
		o, err := d.object(&e, wrong)
		if err != nil {
			return err
		}
		l.Items = append(l.Items, o)
	}
	return d.expect(json.Delim(']'))
}

func (d *decoder) expect(want json.Delim) error {
	token, err := d.json.Token()
	if err != nil {
		return err
	}
	if token != want {
		return fmt.Errorf("the server has sent %s where a list has %v", text.Abbreviate(fmt.Sprint(token)), want)
	}
	return nil
}
