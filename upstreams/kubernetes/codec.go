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
	"meshrelay/mirror"
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
	folded                   *folded
	// bare: its content was not kept, because its namespace was not mirrored when it came.
	bare bool
}

// folded is what an object has come to while others were still on their way. The object has no
// content any more.
type folded struct {
	digest   xxh3.Uint128
	size     int
	held     bool // by the intake: there is nothing else
	resource *mirror.Resource
	unknown  []string // fields
	err      error
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
	if o.folded != nil {
		return o.folded.size
	}
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
var decoderVersion = "2 " + buildinfo.Module("istio.io/api")

// digest returns a hash of all that counts of the object. The version that the server gives it
// does not: each write of a status changes it.
func (o *object) digest(settings string) xxh3.Uint128 {
	if o.folded != nil {
		return o.folded.digest
	}
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

// envelope is the part of an object that is read. The rest is scanned and forgotten. Its JSON is
// valid until more is read of the stream.
type envelope struct {
	metadata struct {
		name, namespace, version, created string
		labels, annotations               map[string]string
	}
	spec   []byte
	status []byte // of a workload, or a ClusterProfile
	data   []byte // of a Secret
	// These are of a metav1.Status.
	code, reason, message, details []byte
	wrong                          error // the first value of another type than it has to have
}

// readEnvelope reads an object.
func (s *scanner) readEnvelope() (e envelope, err error) {
	err = s.fields(func(key []byte) (err error) {
		if string(key) == "metadata" {
			return e.readMetadata(s)
		}
		value, err := s.field()
		switch string(key) {
		case "spec":
			e.spec = value
		case "status":
			e.status = value
		case "data":
			e.data = value
		case "code":
			e.code = value
		case "reason":
			e.reason = value
		case "message":
			e.message = value
		case "details":
			e.details = value
		}
		return err
	})
	return e, err
}

func (e *envelope) readMetadata(s *scanner) error {
	m := &e.metadata
	return s.fields(func(key []byte) (err error) {
		var to *string
		var labels *map[string]string
		path, but := "", ""
		switch string(key) {
		case "name":
			to, path = &m.name, "metadata.name"
		case "namespace":
			to, path = &m.namespace, "metadata.namespace"
		case "resourceVersion":
			to, path = &m.version, "metadata.resourceVersion"
		case "creationTimestamp":
			to, path = &m.created, "metadata.creationTimestamp"
		case "labels":
			labels, path = &m.labels, "metadata.labels"
		case "annotations":
			labels, path, but = &m.annotations, "metadata.annotations", lastApplied
		}
		var wrong error
		if labels != nil {
			*labels, wrong, err = s.mapOf(path, but)
		} else {
			var value []byte
			if value, err = s.field(); err == nil && to != nil {
				*to, wrong = stringOf(value, path)
			}
		}
		if e.wrong == nil {
			e.wrong = wrong
		}
		return err
	})
}

// failure returns the metav1.Status that an envelope is.
func (e *envelope) failure() *metav1.Status {
	s := &metav1.Status{Status: metav1.StatusFailure}
	for to, value := range map[any][]byte{&s.Code: e.code, &s.Reason: e.reason, &s.Message: e.message, &s.Details: e.details} {
		_ = json.Unmarshal(value, to) // what is missing tells less
	}
	s.Message = text.Abbreviate(s.Message)
	return s
}

// object returns the object of an envelope, whose spec is valid as long as that of the envelope. Only an
// object without a name is an error: anything else that is wrong is for the intake, which refuses the
// object by its name.
func (e *envelope) object() (*object, error) {
	m := &e.metadata
	o := &object{namespace: m.namespace, name: m.name, version: m.version, labels: m.labels, annotations: m.annotations, err: e.wrong}
	if o.name == "" {
		return nil, errors.New("the server has sent an object without a name")
	}
	if m.created != "" {
		var err error
		if o.created, err = time.Parse(time.RFC3339, m.created); err != nil && o.err == nil {
			o.err = errors.New("metadata.creationTimestamp is not a time")
		}
	}
	if o.spec = e.spec; bytes.IndexByte(e.spec, '\n') < 0 {
		return o, nil
	}
	var line bytes.Buffer
	if err := json.Compact(&line, e.spec); err != nil {
		return nil, err
	}
	o.spec = line.Bytes()
	return o, nil
}

// part returns the part of an object that a Hub reads.
func (e *envelope) part(p Part) []byte {
	if p == Status {
		return e.status
	}
	return e.data
}

// healthy returns the condition Healthy of a status, nil without one.
func healthy(status []byte) *bool {
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

// overhead is what an object takes in memory in addition to its content, about.
const overhead = 512

// budget bounds what the objects of one list take in memory until the intake has them, in bytes.
type budget struct {
	most int // 0 for no bound
	// whole: no object is without its content, unless there are too many.
	whole bool

	mu            sync.Mutex // guards the next two
	objects, used int        // used is by their content
}

// take makes room for o, or takes its content away where that is too much: the intake then refuses it by
// name, and keeps what it has of it. What it has already needs no room. Too many objects are an error.
func (b *budget) take(o *object) error {
	if b == nil || b.most <= 0 {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	n := o.size()
	taken := (b.objects + 1) * overhead
	if b.whole {
		taken += b.used + n
	}
	if b.objects++; taken > 2*b.most {
		return fmt.Errorf("the server has more objects of the kind than limits.maxBytes of the upstream (%d) can ever hold", b.most)
	}
	if o.folded != nil && o.folded.held {
		return nil
	}
	if b.whole || b.used+n <= b.most {
		b.used += n
		return nil
	}
	o.spec, o.labels, o.annotations, o.folded = nil, nil, nil, nil
	o.err = errors.New("over the limit: the objects of its kind have more than limits.maxBytes")
	return nil
}

// decoder reads the objects of one response. It implements watch.Decoder.
type decoder struct {
	body     io.ReadCloser
	scan     scanner
	workload bool // the health of the objects counts
	labels   bool // nothing else of them does
	budget   *budget
	fold     func(*object) // unless nil, leaves nothing of an object that whoever takes it has to decode
	choice   *choice
	// part, unless nil, is what is kept of an object in place of its spec.
	part *Part
	room *hubRoom // for the objects of a Hub's list, nil without a bound
}

func newDecoder(body io.ReadCloser, workload bool) *decoder {
	return &decoder{body: body, scan: scanner{r: body}, workload: workload}
}

// Close implements watch.Decoder.
func (d *decoder) Close() { d.body.Close() }

// Decode implements watch.Decoder. It returns io.EOF at the end of the stream.
func (d *decoder) Decode() (event watch.EventType, o runtime.Object, err error) {
	defer panics(&err)
	return d.decode()
}

// panics makes a panic an error: who reads a stream does so in a goroutine of client-go.
func panics(err *error) {
	if p := mirror.Recovered(recover()); p != nil {
		*err = p
	}
}

func (d *decoder) decode() (watch.EventType, runtime.Object, error) {
	if _, err := d.scan.next(); err != nil {
		return "", nil, err
	}
	d.scan.keep()
	defer d.scan.drop()
	var event watch.EventType
	var e envelope
	if err := d.scan.fields(func(key []byte) (err error) {
		if string(key) == "object" {
			e, err = d.scan.readEnvelope()
			return err
		}
		value, err := d.scan.field()
		if string(key) == "type" {
			name, _ := unquoted(value)
			event = watch.EventType(name)
		}
		return err
	}); err != nil {
		return "", nil, err
	}
	switch event {
	case watch.Bookmark:
		return event, &object{version: e.metadata.version, annotations: e.metadata.annotations}, nil
	case watch.Added, watch.Modified, watch.Deleted:
		o, err := d.object(&e)
		return event, o, err
	case watch.Error:
		return event, e.failure(), nil // a watch that has expired ends like this
	}
	return "", nil, fmt.Errorf("the server has sent an event of the unknown type %q", text.Abbreviate(string(event)))
}

func (d *decoder) object(e *envelope) (*object, error) {
	o, err := e.object()
	if err != nil {
		return nil, err
	}
	if !d.choice.has(o.namespace) {
		return &object{namespace: o.namespace, name: o.name, version: o.version, bare: true}, nil
	}
	if d.labels {
		o.annotations, o.spec = nil, nil
	}
	if d.workload {
		o.health = healthy(e.status)
	}
	if d.part != nil {
		o.spec = e.part(*d.part)
	}
	if d.room != nil {
		if err := d.room.take(o); err != nil {
			return nil, err
		}
	}
	if d.fold != nil {
		d.fold(o)
	}
	if err := d.budget.take(o); err != nil {
		return o, err
	}
	o.spec = bytes.Clone(o.spec) // the envelope's is the scanner's
	return o, nil
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
func (d *decoder) list() (l *objects, err error) {
	defer panics(&err)
	l = &objects{}
	return l, d.readList(l)
}

func (d *decoder) readList(l *objects) error {
	complete := false
	if err := d.scan.expect('{'); err != nil {
		return err
	}
	for {
		b, err := d.scan.next()
		if err != nil {
			return unexpected(err)
		}
		switch b {
		case '}':
			if !complete || l.ResourceVersion == "" {
				return errors.New("the server has sent a list without items or without a resourceVersion") // a proxy's, perhaps
			}
			return nil
		case ',':
			d.scan.at++
		}
		key, err := d.scan.value()
		if err != nil {
			return unexpected(err)
		}
		items, metadata := string(key) == `"items"`, string(key) == `"metadata"`
		if err := d.scan.expect(':'); err != nil {
			return err
		}
		if items {
			complete = true
			if err := d.items(l); err != nil {
				return err
			}
			continue
		}
		value, err := d.scan.value()
		if err != nil {
			return unexpected(err)
		}
		if metadata {
			if err := json.Unmarshal(value, &l.ListMeta); err != nil {
				return err
			}
		}
	}
}

func (d *decoder) items(l *objects) error {
	if b, err := d.scan.next(); err != nil || b == 'n' {
		_, err := d.scan.value() // null is an empty list
		return err
	}
	if err := d.scan.expect('['); err != nil {
		return err
	}
	for first := true; ; first = false {
		b, err := d.scan.next()
		if err != nil {
			return unexpected(err)
		}
		switch {
		case b == ']':
			d.scan.at++
			return nil
		case !first:
			if err := d.scan.expect(','); err != nil {
				return err
			}
		}
		o, err := d.item()
		if err != nil {
			return err
		}
		l.Items = append(l.Items, o)
	}
}

// item reads an object of a list.
func (d *decoder) item() (*object, error) {
	if _, err := d.scan.next(); err != nil {
		return nil, unexpected(err)
	}
	d.scan.keep()
	defer d.scan.drop()
	e, err := d.scan.readEnvelope()
	if err != nil {
		return nil, err
	}
	return d.object(&e)
}
