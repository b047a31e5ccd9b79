package apiserver

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// WriteTimeout bounds the time of Conn.Write. A writer that holds a Lease must end so long before the Lease does.
const WriteTimeout = 5 * time.Second

// These are media types for Write.Type.
const (
	TypeJSON      = AcceptJSON
	TypeApply     = "application/apply-patch+yaml" // server-side apply; JSON is YAML
	TypeJSONPatch = "application/json-patch+json"
)

// Write is a request that changes an object. Get sends one that reads.
type Write struct {
	Method string // POST, PUT, PATCH or DELETE
	Path   string
	Query  url.Values
	Type   string // media type of Body
	Body   []byte
	Accept string // media type of the answer, empty for AcceptJSON
}

// Write sends a request and decodes its answer, unless to is nil. It does not wait for Retry-After: the error, of
// package apierrors, tells it to apierrors.SuggestsClientDelay. After any other error it is not known whether the
// object has changed.
func (c *Conn) Write(ctx context.Context, w Write, to any) error {
	ctx, cancel := context.WithTimeout(ctx, WriteTimeout)
	defer cancel()
	w.Accept = cmp.Or(w.Accept, AcceptJSON)
	resp, err := c.do(ctx, w)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		failed := failureOf(resp)
		if n := retryAfter(resp); n > 0 {
			details := cmp.Or(failed.ErrStatus.Details, &metav1.StatusDetails{})
			details.RetryAfterSeconds, failed.ErrStatus.Details = n, details
		}
		return failed
	}
	text, err := io.ReadAll(http.MaxBytesReader(nil, body{resp.Body, w.Path}, maxAnswer))
	switch {
	case err != nil:
		return fmt.Errorf("%s %s: the answer: %w", w.Method, w.Path, err)
	case to == nil:
		return nil
	}
	return json.Unmarshal(text, to)
}

// Save creates an object in a collection, or updates it unless it has changed since it was read with its resourceVersion. It
// decodes the answer, unless to is nil. resource is for the error. A dry run changes nothing, and has the server's answer.
func (c *Conn) Save(ctx context.Context, resource, collection string, m metav1.ObjectMeta, object, to any, dryRun bool) (err error) {
	verb, w := "update", Write{Method: http.MethodPut, Path: collection + "/" + m.Name, Type: TypeJSON}
	if m.ResourceVersion == "" {
		verb, w.Method, w.Path = "create", http.MethodPost, collection
	}
	if dryRun {
		w.Query = url.Values{"dryRun": {"All"}}
	}
	if w.Body, err = json.Marshal(object); err != nil {
		return err
	}
	return Failed(verb, resource, m.Namespace, m.Name, c.Write(ctx, w, to))
}

// Failed returns the error of a request, with what it was for and what to do. A namespace is empty for all.
func Failed(verb, resource, namespace, name string, err error) error {
	scope, cure, one := " -n "+namespace, "", ""
	if namespace == "" {
		scope = " -A"
	}
	if name != "" && verb != "create" {
		one = "/" + name
	}
	switch {
	case err == nil:
		return nil
	case apierrors.IsForbidden(err):
		cure = fmt.Sprintf(": allow the identity to %s %s; check with: kubectl auth can-i %[1]s %[2]s%s%s", verb, resource, one, scope)
	case apierrors.IsUnauthorized(err):
		cure = ": renew the credentials of the cluster"
	case verb == "create" && apierrors.IsNotFound(err):
		cure = fmt.Sprintf(": create the namespace %s, or name the right one", namespace)
	}
	return fmt.Errorf("%s %s %s: %w%s", verb, resource, strings.Trim(namespace+"/"+name, "/"), err, cure)
}
