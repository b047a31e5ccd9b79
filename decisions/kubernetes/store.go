// Package kubernetes keeps the log of decisions in a ConfigMap of an API server.
//
// The package must not know what a decision means, or when one is made.
package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshrelay/decisions"
	"meshrelay/upstreams/kubernetes/apiserver"
)

const (
	// Usual is the time between two reads by a relay.
	Usual       = time.Second
	maxAttempts = 20                    // of an append, against conflicts with other replicas
	leastRest   = 20 * time.Millisecond // between two attempts
	mostRest    = 400 * time.Millisecond
	logKey      = "log" // of the data
)

// Store keeps a log in a ConfigMap. Any goroutine may call its methods.
type Store struct {
	client          *apiserver.Client
	namespace, name string
	every           time.Duration

	refreshing sync.Mutex // is held while credentials are read

	mu     sync.Mutex // guards newest
	newest decisions.Log
}

// New returns a Store that has requested nothing yet. every is the time between two reads.
func New(creds *apiserver.Credentials, agent, namespace, name string, every time.Duration) *Store {
	return &Store{client: apiserver.NewClient(creds, agent), namespace: namespace, name: name, every: every}
}

// object is the ConfigMap. It has no resourceVersion if it does not exist.
type object struct {
	metav1.TypeMeta
	Metadata metav1.ObjectMeta `json:"metadata"`
	Data     map[string]string `json:"data"`
}

func (s *Store) collection() string {
	return "/api/v1/namespaces/" + url.PathEscape(s.namespace) + "/configmaps"
}

func (s *Store) path() string { return s.collection() + "/" + url.PathEscape(s.name) }

// connect reads the credentials again. While their files are broken, the former ones stay.
func (s *Store) connect(ctx context.Context) (*apiserver.Conn, error) {
	s.refreshing.Lock()
	defer s.refreshing.Unlock()
	err := s.client.Refresh(ctx)
	if conn := s.client.Current(); conn != nil {
		return conn, nil
	}
	return nil, cmp.Or(err, apiserver.ErrNoCredentials)
}

// read returns the object and its log. If this process has read decisions that the object lacks, because it was deleted or
// restored, the log has these and what only the object has, and lost is true: the next write restores the object.
func (s *Store) read(ctx context.Context) (o *object, log decisions.Log, lost bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, apiserver.WriteTimeout)
	defer cancel()
	conn, err := s.connect(ctx)
	if err != nil {
		return nil, log, false, err
	}
	o = &object{}
	if err := conn.Read(ctx, s.path(), apiserver.AcceptJSON, o); err != nil && !apierrors.IsNotFound(err) {
		return nil, log, false, apiserver.Failed("get", "configmaps", s.namespace, s.name, err)
	}
	if log, err = decisions.Decode(o.Data[logKey]); err != nil {
		return nil, log, false, fmt.Errorf("ConfigMap %s/%s: %w: restore its data, or delete it, and a replica that knows the decisions writes it anew", s.namespace, s.name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !log.Follows(s.newest) {
		return o, s.newest.With(log), true, nil
	}
	s.newest = log
	return o, log, false, nil
}

// write writes a log, if the object is still o.
func (s *Store) write(ctx context.Context, o *object, log decisions.Log) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	if o.Metadata.ResourceVersion == "" { // else it is the precondition
		o.Metadata = metav1.ObjectMeta{Name: s.name, Namespace: s.namespace, Labels: map[string]string{"app.kubernetes.io/managed-by": "meshrelay"}}
	}
	if o.Data == nil {
		o.Data = map[string]string{}
	}
	o.APIVersion, o.Kind, o.Data[logKey] = "v1", "ConfigMap", log.Encode()
	if err := conn.Save(ctx, "configmaps", s.collection(), o.Metadata, o, nil, false); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if log.State().Sequence >= s.newest.State().Sequence {
		s.newest = log
	}
	return nil
}

// Append implements upstreams.Decisions.
func (s *Store) Append(ctx context.Context, r decisions.Record) (decisions.Log, error) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = leastRest, mostRest
	var last error
	log, err := backoff.Retry(ctx, func() (decisions.Log, error) {
		o, log, _, err := s.read(ctx)
		if err == nil {
			if log, err = log.Append(r); err != nil {
				return log, backoff.Permanent(err)
			}
			err = s.write(ctx, o, log)
		}
		if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsInvalid(err) || errors.Is(err, decisions.ErrNoLog) {
			return log, backoff.Permanent(err)
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		return log, err
	}, backoff.WithBackOff(pause), backoff.WithMaxTries(maxAttempts))
	if err != nil && ctx.Err() != nil {
		err = cmp.Or(last, err) // it tells more than that the time is over
	}
	return log, err
}

// Watch implements upstreams.Decisions. It reads the object again and again: a watch that tells nothing is not known from
// one that is cut off. At its end it closes the connections.
func (s *Store) Watch(ctx context.Context, took func(decisions.Log, error)) {
	defer s.client.Close()
	again := time.NewTicker(s.every)
	defer again.Stop()
	for {
		o, log, lost, err := s.read(ctx)
		if lost {
			if err = s.write(ctx, o, log); apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
				err = nil // the next read tells
			}
		}
		if ctx.Err() != nil {
			return
		}
		took(log, err)
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
	}
}
