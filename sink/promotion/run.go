package promotion

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshrelay/mirror"
	"meshrelay/upstreams/kubernetes/apiserver"
	"meshrelay/upstreams/kubernetes/discovery"
)

const (
	page       = "64"            // objects of an answer to a list
	tries      = 10              // of a request or change
	longest    = 5 * time.Minute // pause that a server can ask for
	guardEvery = 2 * time.Second // between two looks at whether another command has taken over
	maxRefused = 20              // objects that the server refuses to change before a command gives up
)

// sinkLabel has the name of the sink that an object belongs to. ours begins the labels and annotations of the relay.
const sinkLabel, ours = "meshrelay.io/sink", "meshrelay.io/"

// Report is the result of Disown.
type Report struct {
	Objects int `json:"objects"` // with the label
	Changed int `json:"changed"` // in this run, or in a dry run those to change
}

// run is a run of one command. One goroutine uses it.
type run struct {
	Options
	limit   *rate.Limiter
	number  int // of the promotion that must last, 0 for any
	guarded time.Time
}

func newRun(o Options) *run {
	return &run{Options: o, limit: rate.NewLimiter(rate.Limit(o.WritesPerSecond), 1)}
}

// try calls f until it does not fail, or fails for a reason that may not pass. f begins with reading what it changes.
func (r *run) try(ctx context.Context, f func() error) error {
	for n := 1; ; n++ {
		err := f()
		conflict := apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)
		seconds, told := apierrors.SuggestsClientDelay(err)
		passes := conflict || told || errors.As(err, new(*url.Error)) || errors.Is(err, context.DeadlineExceeded) ||
			apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err)
		switch {
		case !passes || ctx.Err() != nil:
			return err
		case n == tries:
			return fmt.Errorf("%w: tried %d times: remove the reason, and run the same command again", err, n)
		}
		wait := min(max(time.Duration(n), time.Duration(seconds))*time.Second, longest)
		if conflict {
			wait = time.Duration(n-1) * 100 * time.Millisecond
		} else {
			r.Tell("%v: trying again in %v", err, wait)
		}
		if !mirror.Sleep(ctx, wait) {
			return ctx.Err()
		}
	}
}

// guard returns an error if the sink has another promotion, or none, than when the command began. It looks every guardEvery by any
// clock: the monotonic one stands still while a laptop sleeps, and the sink may write when it wakes. It is part of what
// try tries.
func (r *run) guard(ctx context.Context) error {
	at := time.Now()
	if r.number == 0 || at.Sub(r.guarded) < guardEvery && at.Round(0).Sub(r.guarded.Round(0)).Abs() < guardEvery {
		return nil
	}
	if err := r.stillPromoted(ctx, r.number); err != nil {
		return err
	}
	r.guarded = time.Now()
	return nil
}

// object is an object that a command changes.
type object struct {
	discovery.Resource
	namespace, name, uid string
}

// find calls f with each object of the sink, until it fails.
func (r *run) find(ctx context.Context, f func(object) error) error {
	wanted := []mirror.Kind{}
	for _, info := range mirror.Kinds() {
		wanted = append(wanted, info.Kind)
	}
	var answer *discovery.Answer
	err := r.try(ctx, func() (err error) {
		// An API server that starts answers before it knows its definitions: their objects would be left out.
		err = r.Conn().Stream(ctx, "/readyz", "*/*", 0, func(io.Reader) error { return nil })
		if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
			return fmt.Errorf("the API server is not ready: look at kubectl get --raw '/readyz?verbose': %w", err)
		}
		answer, err = discovery.Fetch(ctx, r.Conn(), wanted)
		return err
	})
	if err != nil {
		return err
	}
	for _, k := range wanted {
		served := answer.Kinds[k]
		if len(served) == 0 && !answer.Lacks(k) {
			return fmt.Errorf("the API server does not tell whether it serves %s: look at kubectl get apiservices, and run the command again", k)
		} else if len(served) == 0 {
			continue
		}
		err := r.list(ctx, served[0], func(m metav1.ObjectMeta) error { // metadata is the same in all versions
			return f(object{served[0], m.Namespace, m.Name, string(m.UID)})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// list calls f with all objects of the sink of a kind, until it fails.
func (r *run) list(ctx context.Context, kind discovery.Resource, f func(metav1.ObjectMeta) error) error {
	expired := 0
	for token := ""; ; {
		var answer metav1.PartialObjectMetadataList
		q := url.Values{"limit": {page}, "labelSelector": {sinkLabel + "=" + r.Sink}, "continue": {token}}
		err := r.try(ctx, func() error {
			if err := r.guard(ctx); err != nil {
				return err
			}
			err := r.Conn().Read(ctx, kind.Path("")+"?"+q.Encode(), apiserver.AcceptMetadataList, &answer)
			return apiserver.Failed("list", kind.Plural+"."+kind.Kind.Group, "", "", err)
		})
		switch {
		case apierrors.IsResourceExpired(err) && expired < 3:
			expired, token = expired+1, ""
			continue
		case err != nil:
			return err
		}
		for _, item := range answer.Items {
			if err := f(item.ObjectMeta); err != nil {
				return err
			}
		}
		if token = answer.Continue; token == "" {
			return nil
		}
	}
}

// operation is one of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

func at(field, key string) string {
	return "/metadata/" + field + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}

// cleanAll takes all of the relay off objects, by JSON patches. An object that somebody has made his own stays as it is, and
// so does one that was deleted or created anew.
func (r *run) cleanAll(ctx context.Context, all []object) (changed int, err error) {
	var refused []error
	last, n := time.Now(), 0
	for _, o := range all {
		done, err := r.cleanOne(ctx, o)
		if n++; done {
			changed++
		}
		if err != nil && (ctx.Err() != nil || !errors.As(err, new(*apierrors.StatusError))) {
			return changed, err
		}
		if err != nil {
			if refused = append(refused, err); len(refused) == maxRefused {
				break
			}
		}
		if time.Since(last) > 5*time.Second {
			last = time.Now()
			r.Tell("cleaned %d of %d objects", n, len(all))
		}
	}
	if len(refused) > 0 {
		return changed, fmt.Errorf("the API server refuses to change %d or more of %d objects; correct that, and run the command again: %w", len(refused), len(all), errors.Join(refused...))
	}
	return changed, nil
}

// cleanOne changes one object, and reports whether it has.
func (r *run) cleanOne(ctx context.Context, o object) (changed bool, err error) {
	path, resource := o.Path(o.namespace)+"/"+o.name, o.Plural+"."+o.Kind.Group
	err = r.try(ctx, func() error {
		if err := r.guard(ctx); err != nil {
			return err
		}
		var is metav1.PartialObjectMetadata
		err := r.Conn().Read(ctx, path, apiserver.AcceptMetadata+","+apiserver.AcceptJSON, &is)
		if apierrors.IsNotFound(err) {
			return nil
		} else if err != nil {
			return apiserver.Failed("get", resource, o.namespace, o.name, err)
		}
		if string(is.UID) != o.uid {
			return nil
		}
		operations := r.clean(is.ObjectMeta)
		if len(operations) == 0 {
			return nil
		}
		if err := r.limit.Wait(ctx); err != nil {
			return err
		}
		body, err := json.Marshal(append(operations,
			operation{"replace", "/metadata/uid", o.uid}, operation{"replace", "/metadata/resourceVersion", is.ResourceVersion}))
		if err != nil {
			return err
		}
		err = r.Conn().Write(ctx, apiserver.Write{
			Method: http.MethodPatch, Path: path, Type: apiserver.TypeJSONPatch, Body: body, Accept: apiserver.AcceptMetadata + "," + apiserver.AcceptJSON,
			Query: url.Values{"fieldManager": {ObjectName(r.Sink)}},
		}, nil)
		if apierrors.IsNotFound(err) {
			return nil
		}
		changed = err == nil
		return apiserver.Failed("patch", resource, o.namespace, o.name, err)
	})
	return changed, err
}
