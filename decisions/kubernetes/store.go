// Package kubernetes keeps the log of decisions in a ConfigMap of an API server.
//
// The package must not know what a decision means, or when one is made.
package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"meshrelay/decisions"
	"meshrelay/upstreams/kubernetes/apiserver"
)

const (
	maxObject   = 2 << 20 // bytes of an answer: an object in etcd has 1.5 MiB
	maxAttempts = 20      // of an append, against conflicts with other replicas
	attemptRest = 20 * time.Millisecond
	stateKey    = "state" // keys of the data
	recordsKey  = "records"
)

// Pace has the pauses of a Store.
type Pace struct {
	Watch            time.Duration // longest time of a watch, and so between two lists
	Retry, RetryMost time.Duration // bound the pauses after a failure
}

// Usual is the pace of a relay. After an outage, and where a watch tells nothing any more, it has the log within some 5 s.
var Usual = Pace{Watch: 5 * time.Second, Retry: 500 * time.Millisecond, RetryMost: 3 * time.Second}

// Store keeps a log in a ConfigMap. Any goroutine may call its methods.
type Store struct {
	client          *apiserver.Client
	namespace, name string
	pace            Pace

	refreshing sync.Mutex // is held while credentials are read

	mu     sync.Mutex // guards newest
	newest decisions.Log
}

// New returns a Store that has requested nothing yet.
func New(creds *apiserver.Credentials, agent, namespace, name string, pace Pace) *Store {
	return &Store{client: apiserver.NewClient(creds, agent), namespace: namespace, name: name, pace: pace}
}

// object is the ConfigMap. It keeps the fields that it does not know. A nil object does not exist.
type object struct {
	fields  map[string]json.RawMessage
	data    map[string]string
	version string
}

// UnmarshalJSON implements json.Unmarshaler.
func (o *object) UnmarshalJSON(b []byte) error {
	var known struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Data map[string]string `json:"data"`
	}
	if err := json.Unmarshal(b, &known); err != nil {
		return err
	}
	o.data, o.version = known.Data, known.Metadata.ResourceVersion
	return json.Unmarshal(b, &o.fields)
}

// log returns the log in the object.
func (o *object) log() (decisions.Log, []string, error) {
	if o == nil {
		return decisions.Log{}, nil, nil
	}
	return decisions.Decode(o.data[stateKey], o.data[recordsKey])
}

func (s *Store) collection() string {
	return "/api/v1/namespaces/" + url.PathEscape(s.namespace) + "/configmaps"
}

func (s *Store) path() string { return s.collection() + "/" + url.PathEscape(s.name) }

// refresh reads the credentials again, and returns a connection.
func (s *Store) refresh(ctx context.Context) (*apiserver.Conn, error) {
	s.refreshing.Lock()
	defer s.refreshing.Unlock()
	err := s.client.Refresh(ctx)
	if conn := s.client.Current(); conn != nil {
		return conn, nil // with the former credentials, if the files are broken
	}
	return nil, err
}

// explain names the object, and what to do about missing rights.
func (s *Store) explain(verb string, err error) error {
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		return fmt.Errorf("ConfigMap %s/%s: the identity of the relay may not %s it: grant it get, list, watch, create and update for this name: %w", s.namespace, s.name, verb, err)
	}
	return fmt.Errorf("ConfigMap %s/%s: %s: %w", s.namespace, s.name, verb, err)
}

// get returns the object, nil if there is none.
func (s *Store) get(ctx context.Context, conn *apiserver.Conn) (*object, error) {
	ctx, cancel := context.WithTimeout(ctx, apiserver.WriteTimeout)
	defer cancel()
	o := &object{}
	err := conn.Stream(ctx, s.path(), apiserver.AcceptJSON, maxObject, func(body io.Reader) error { return decode(body, o) })
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, s.explain("get", err)
	}
	return o, nil
}

func decode(body io.Reader, to any) error {
	b, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, to)
}

// Append implements upstreams.Decisions.
func (s *Store) Append(ctx context.Context, record func(decisions.State) (decisions.Record, error)) (decisions.Log, error) {
	conn, err := s.refresh(ctx)
	if err != nil {
		return decisions.Log{}, err
	}
	id := ""
	for attempt := 1; ; attempt++ {
		log, err := s.appendOnce(ctx, conn, record, &id)
		if err == nil || errors.Is(err, decisions.ErrRefused) || ctx.Err() != nil || attempt == maxAttempts || !mayPass(err) {
			return log, err
		}
		rest := attemptRest * time.Duration(attempt)
		select {
		case <-ctx.Done():
			return log, err
		case <-time.After(rest/2 + rand.N(rest)):
		}
	}
}

// mayPass reports whether another attempt may succeed: there was a conflict, or the answer was lost.
func mayPass(err error) bool {
	return !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) && !apierrors.IsInvalid(err) && !errors.As(err, new(*logError))
}

// logError is an error of the log in the object.
type logError struct{ error }

func (e *logError) Unwrap() error { return e.error }

// appendOnce reads the log, and writes it with the record. id is that of the record of the attempt before: if the log has
// it, only the answer was lost.
func (s *Store) appendOnce(ctx context.Context, conn *apiserver.Conn, record func(decisions.State) (decisions.Record, error), id *string) (decisions.Log, error) {
	o, err := s.get(ctx, conn)
	if err != nil {
		return decisions.Log{}, err
	}
	log, _, err := s.join(o)
	if err != nil {
		return log, err
	}
	if *id != "" && log.Has(*id) {
		return log, nil
	}
	r, err := record(log.State())
	if err != nil {
		return log, err
	}
	*id = r.ID
	if log, err = log.Append(r); err != nil {
		return log, &logError{err}
	}
	if err := s.put(ctx, conn, o, log); err != nil {
		return log, err
	}
	s.note(log)
	return log, nil
}

// join returns the log in an object. If that is older than what this process has read, because the object was deleted or
// restored, the result is the newer log with the records that only the object has: the next write restores it.
func (s *Store) join(o *object) (log decisions.Log, problems []string, err error) {
	log, problems, err = o.log()
	if err != nil {
		return log, nil, &logError{fmt.Errorf("ConfigMap %s/%s: %w: restore its data, or delete it, and a replica that knows the decisions writes it anew", s.namespace, s.name, err)}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if log.State().Sequence < s.newest.State().Sequence {
		return s.newest.With(log), append(problems, "the object has older decisions than were known, and is restored"), nil
	}
	return log, problems, nil
}

func (s *Store) sequence() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newest.State().Sequence
}

// note keeps the newest log.
func (s *Store) note(log decisions.Log) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if log.State().Sequence >= s.newest.State().Sequence {
		s.newest = log
	}
}

// put writes a log, if the object is still o.
func (s *Store) put(ctx context.Context, conn *apiserver.Conn, o *object, log decisions.Log) error {
	fields := map[string]json.RawMessage{}
	data := map[string]string{}
	w := apiserver.Write{Method: http.MethodPost, Path: s.collection(), Type: apiserver.TypeJSON}
	if o == nil {
		fields["metadata"], _ = json.Marshal(map[string]any{
			"name": s.name, "namespace": s.namespace, "labels": map[string]string{"app.kubernetes.io/managed-by": "meshrelay"},
		})
	} else {
		w.Method, w.Path = http.MethodPut, s.path()
		for name, field := range o.fields { // metadata has the resourceVersion, which is the precondition
			fields[name] = field
		}
		for name, text := range o.data {
			data[name] = text
		}
	}
	data[stateKey], data[recordsKey] = log.Encode()
	fields["apiVersion"], fields["kind"] = json.RawMessage(`"v1"`), json.RawMessage(`"ConfigMap"`)
	var err error
	if fields["data"], err = json.Marshal(data); err != nil {
		return err
	}
	if w.Body, err = json.Marshal(fields); err != nil {
		return err
	}
	if err := conn.Write(ctx, w, nil); err != nil {
		return s.explain(map[string]string{http.MethodPost: "create", http.MethodPut: "update"}[w.Method], err)
	}
	return nil
}

// Watch implements upstreams.Decisions. At its end it closes the connections.
func (s *Store) Watch(ctx context.Context, took func(decisions.Log, []string, error)) {
	defer s.client.Close()
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = s.pace.Retry, s.pace.RetryMost
	for ctx.Err() == nil {
		err := s.follow(ctx, took)
		if ctx.Err() != nil {
			return
		}
		rest := s.pace.Retry / 4
		if err == nil {
			pause.Reset()
		} else {
			took(decisions.Log{}, nil, err)
			rest = pause.NextBackOff()
		}
		select {
		case <-ctx.Done():
		case <-time.After(rest):
		}
	}
}
