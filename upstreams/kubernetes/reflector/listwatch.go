package reflector

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion/queryparams"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"meshrelay/upstreams/kubernetes/object"
)

// listed sends the request of client-go's reflector for a list.
func (r *Reflector) listed(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	if !r.running.TryRLock() {
		return nil, context.Canceled
	}
	defer r.running.RUnlock()
	l, err := r.list(ctx, options)
	if err != nil {
		r.sink.Failed(err)
		return nil, err
	}
	return l, nil
}

// list returns one page of a list.
func (r *Reflector) list(ctx context.Context, options metav1.ListOptions) (_ *object.List, err error) {
	defer func() {
		if err != nil {
			r.reading.Load().Close()
		}
	}()
	s, err := r.open(ctx, options)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	l, err := s.List()
	return l, s.cause(err)
}

// watched sends the request of client-go's reflector for a watch.
func (r *Reflector) watched(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	streams := ptr.Deref(options.SendInitialEvents, false)
	if streams && r.cuts.Load() >= maxCuts {
		if time.Since(time.Unix(0, r.cutAt.Load())) < r.Pace.Forgive {
			return nil, errPaged
		}
		r.cuts.Store(maxCuts - 1) // one more try
	}
	if !streams {
		// After an outage, an older state of etcd may have been restored, and may have passed the version of the last
		// watch since. A restore takes longer than a broken connection, because the servers must be stopped for it.
		if !r.sink.MayResume() {
			return nil, apierrors.NewResourceExpired("the server was out of reach, and may have been restored")
		}
		if err := r.precedes(ctx, options.ResourceVersion); err != nil {
			r.sink.Failed(err)
			return nil, err
		}
	}
	s, err := r.open(ctx, options)
	if err != nil {
		if streams && errors.Is(err, errSilent) {
			r.cut(err)
		}
		if !streams || !apierrors.IsInvalid(err) { // a server before 1.32 has no streaming lists
			r.sink.Failed(err)
		}
		return nil, err
	}
	if !streams {
		r.sink.Resumed()
	}
	w := watch.NewStreamWatcherWithLogger(logr.Discard(), s, apierrors.NewClientErrorReporter(http.StatusInternalServerError, "watch", "ClientWatchDecoding"))
	r.watch.Store(w)
	return w, nil
}

// cut counts a streaming list that was cut off.
func (r *Reflector) cut(err error) {
	r.cutAt.Store(time.Now().UnixNano())
	if errors.Is(err, errSilent) {
		r.cuts.Add(maxCuts)
	} else {
		r.cuts.Add(1)
	}
}

// precedes returns an error if the server has not reached a version yet. After a restore of etcd, a server
// accepts a watch from such a version, and sends nothing until it reaches it. But it refuses a list of at
// least that version. client-go's reflector then lists from the beginning.
func (r *Reflector) precedes(ctx context.Context, version string) error {
	defer func() { r.reading.Load().Close() }()
	_, err := r.list(ctx, metav1.ListOptions{ResourceVersion: version, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, Limit: 1})
	return err
}

// mode is what a response contains.
type mode struct {
	lists   bool // all objects come first; until then, a silence of syncTimeout is an error
	watches bool // changes come
	most    time.Duration
}

// page counts a page of a list, and returns how long it may take: all pages together have maxList.
func (r *Reflector) page(first bool) (time.Duration, error) {
	if first {
		r.pages.Store(0)
		r.began.Store(time.Now().UnixNano())
	}
	if r.pages.Add(1) > maxPages {
		r.endless.Store(true)
		return 0, fmt.Errorf("the server has sent more than %d pages of one list: look for a proxy between the relay and the server", maxPages)
	}
	return time.Until(time.Unix(0, r.began.Load()).Add(maxList)), nil
}

// open sends a request and returns its response.
func (r *Reflector) open(ctx context.Context, options metav1.ListOptions) (*stream, error) {
	if options.Continue == "" {
		if err := r.paced.Wait(ctx); err != nil {
			return nil, err
		}
	}
	connection, err := r.Connect(ctx)
	if err != nil {
		return nil, err
	}
	m, accept := mode{lists: true}, r.AcceptList
	if options.Watch {
		most := overtime + time.Duration(ptr.Deref(options.TimeoutSeconds, 0))*time.Second
		m, accept = mode{lists: ptr.Deref(options.SendInitialEvents, false), watches: true, most: most}, r.AcceptWatch
	} else if m.most, err = r.page(options.Continue == ""); err != nil {
		return nil, err
	}
	s := r.newStream(ctx, m)
	began, query := time.Now(), r.query(options)
	resp, err := connection.Get(s.ctx, r.Path, query, accept) //nolint:bodyclose // the stream closes it
	r.Log.Debug("objects requested", "kind", r.Name, "path", r.Path, "query", query.Encode(), "took", time.Since(began), "err", err)
	if err != nil {
		err = s.cause(err)
		s.stop()
		return nil, err
	}
	s.Decoder = object.NewDecoder(&counted{ReadCloser: resp.Body, s: s})
	s.Owners = r.Owners
	if !m.lists {
		s.mayPause()
		return s, nil
	}
	s.reading = r.reading.Load()
	if options.Continue == "" || s.reading == nil {
		s.reading.Close()
		s.reading = r.Begin()
		r.reading.Store(s.reading)
	}
	s.Prepare, s.Admit = r.sink.Prepare, s.reading.Admit
	return s, nil
}

// query returns the parameters of a request.
func (r *Reflector) query(o metav1.ListOptions) url.Values {
	if o.LabelSelector = r.Selector; o.ResourceVersion == "0" {
		o.ResourceVersion = "" // the cache of a replica may be older than the objects that clients have
	}
	q, _ := queryparams.Convert(&o) // it fails for what is no struct
	return q
}
