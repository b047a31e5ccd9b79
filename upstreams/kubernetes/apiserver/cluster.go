package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Cluster verifies that a client is connected to a server of the right cluster. Any goroutine may call its
// methods.
type Cluster struct {
	client *Client
	hooks  Hooks

	// Verified is how long a verification is valid. Retry is the shortest time between two requests after a
	// failure. Do not change them after the first Verify.
	Verified, Retry time.Duration

	breaks atomic.Uint64 // number of broken streams; the next connection may lead to another server

	turn       *semaphore.Weighted // of a Verify, which uses all below
	uid        string              // empty while unknown
	verified   *Conn
	verifiedAt time.Time
	unbroken   uint64 // value of breaks before the verification
	// failed is the connection over which the last verification failed, with failedErr.
	failed    *Conn
	failedAt  time.Time
	failedErr error
}

// Hooks are called with the results of Verify. They must not call Verify.
type Hooks struct {
	Identified func(uid string) // called when the UID becomes known
	// Judged is called after each verification that the server has answered. The error is not nil if the
	// server belongs to another cluster.
	Judged func(uid string, err error)
}

// NewCluster returns a Cluster for the client's server. uid is the UID of the cluster, empty while unknown.
func NewCluster(c *Client, uid string, hooks Hooks) *Cluster {
	return &Cluster{client: c, uid: uid, hooks: hooks, turn: semaphore.NewWeighted(1), Verified: 5 * time.Second, Retry: 800 * time.Millisecond}
}

// Broken notes that a stream has ended: the next Verify requests the UID.
func (c *Cluster) Broken() { c.breaks.Add(1) }

// Verify returns a connection to a server of the cluster. It requests the UID of the cluster if that may have
// changed.
func (c *Cluster) Verify(ctx context.Context) (*Conn, error) {
	if err := c.turn.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer c.turn.Release(1)
	conn, breaks := c.client.Current(), c.breaks.Load()
	if conn == c.verified && breaks == c.unbroken && time.Since(c.verifiedAt) < c.Verified {
		return conn, nil
	}
	if conn == c.failed && time.Since(c.failedAt) < c.Retry {
		return nil, c.failedErr // one failed request is enough for all kinds
	}
	c.verifiedAt = time.Time{}
	uid, err := conn.clusterUID(ctx)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	c.failed = nil
	switch {
	case c.uid == "" && (err == nil && uid == "" || apierrors.IsForbidden(err) || apierrors.IsNotFound(err)):
		// The server does not give the UID, and never gave it.
	case err != nil:
		switch err = c.client.Explain(err); {
		case apierrors.IsForbidden(err):
			err = fmt.Errorf("the identity of the cluster: %w: allow the relay to get the namespace kube-system", err)
		case errors.As(err, new(*url.Error)), apierrors.IsUnauthorized(err): // the error needs no more text
		default:
			err = fmt.Errorf("the identity of the cluster: %w", err)
		}
		c.failed, c.failedAt, c.failedErr = conn, time.Now(), err
		return nil, err
	case c.uid == "":
		c.uid = uid
		c.hooks.Identified(uid)
	case uid != c.uid:
		err := OtherCluster(c.uid, uid)
		c.hooks.Judged(c.uid, err)
		return nil, err
	}
	c.verified, c.verifiedAt, c.unbroken = conn, time.Now(), breaks
	c.hooks.Judged(c.uid, nil)
	return conn, nil
}

// OtherCluster returns the error for a server of the cluster is, while the cluster was is followed.
func OtherCluster(was, is string) error {
	return fmt.Errorf("this is another cluster: its kube-system has the uid %s, and that of the cluster before is %s: correct the kubeconfig, or set clusterUID: %s of the upstream or the sink to have this cluster instead", is, was, is)
}

// UID matches the UID of a cluster. Kubernetes makes UUIDs.
var UID = regexp.MustCompile(`^[-A-Za-z0-9]{1,128}$`)

// clusterUID returns the UID of the namespace kube-system, which every cluster keeps while it exists.
func (c *Conn) clusterUID(ctx context.Context) (string, error) {
	var namespace metav1.PartialObjectMetadata
	err := c.Read(ctx, "/api/v1/namespaces/kube-system", AcceptMetadata+","+AcceptJSON, &namespace)
	uid := string(namespace.UID)
	if uid != "" && !UID.MatchString(uid) {
		return "", fmt.Errorf("its kube-system has a uid of %d bytes that is not 1 to 128 letters, digits and dashes: look whether the server of the kubeconfig is an API server", len(uid))
	}
	return uid, err
}

// Explain returns an error of a request with its cure, if one is known.
func (c *Client) Explain(err error) error {
	if unreached, is := errors.AsType[*url.Error](err); is {
		return fmt.Errorf("the API server can not be reached: %w", withoutURL{unreached})
	}
	if !apierrors.IsUnauthorized(err) {
		return err
	}
	cure := "renew the token or certificate in " + c.creds.Kubeconfig
	switch {
	case c.creds.InCluster:
		cure = "look at the service account of the pod"
	case c.creds.Found != nil:
		cure = "renew the token or certificate in the kubeconfig that was found"
	}
	if end, over := c.Current().Expired(time.Now()); over {
		cure = fmt.Sprintf("the client certificate has expired at %s: %s", end.UTC().Format(time.RFC3339), cure)
	}
	return fmt.Errorf("the API server does not accept the relay's identity (%w): %s", err, cure)
}

// withoutURL is the error of a request, without its URL in the text.
type withoutURL struct{ err *url.Error }

func (e withoutURL) Error() string { return e.err.Err.Error() }

// Unwrap returns the error with the URL.
func (e withoutURL) Unwrap() error { return e.err }
