package clusters

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"meshrelay/config"
	"meshrelay/internal/buildinfo"
	"meshrelay/internal/doctor"
	"meshrelay/internal/text"
	"meshrelay/internal/yamlpos"
	"meshrelay/upstreams/kubernetes/apiserver"
	"meshrelay/upstreams/kubernetes/clusters/registry"
	"meshrelay/upstreams/kubernetes/object"
)

const (
	pageSize   = 100
	maxObjects = 5_000    // objects without data, and keys of data
	maxBytes   = 64 << 20 // of all objects
	maxPages   = 1_000    // a server may have a page for each few objects
)

// reader reads the entries of one part of the config: the Secrets of a hub. One goroutine at a time may call its
// methods.
type reader struct {
	creds           *apiserver.Credentials
	client          *apiserver.Client
	pace            Pace
	namespace, path string // of the Secrets
	selector        string // of labels
	trust           apiserver.Trust
	known           map[[sha256.Size]byte]string // the problems of the last kubeconfigs, empty for a good one
}

// Pace has the pauses of a reader.
type Pace struct {
	Poll             time.Duration // between two lists
	Retry, RetryMost time.Duration // bound the pauses after a failure
}

// Usual is the pace of a relay.
var Usual = Pace{Poll: 10 * time.Second, Retry: time.Second, RetryMost: 30 * time.Second}

// readerOf returns a reader that has requested nothing yet.
func readerOf(c config.Clusters, pace Pace) *reader {
	s, agent := c.Secrets, fmt.Sprintf("meshrelay/%s (clusters %s)", buildinfo.Read("").Version, c.Name)
	creds := &apiserver.Credentials{Cluster: s.Cluster}
	return &reader{
		trust: trustOf(c), creds: creds, client: apiserver.NewClient(creds, agent), pace: pace,
		namespace: s.Namespace, path: "/api/v1/namespaces/" + s.Namespace + "/secrets", selector: s.Selector,
	}
}

// follow calls tell with all entries, or with an error, after each list, until ctx ends.
func (r *reader) follow(ctx context.Context, tell func([]registry.Entry, error)) {
	retry := r.pace.Retry
	for ctx.Err() == nil {
		entries, err := r.list(ctx)
		if ctx.Err() != nil {
			return
		}
		tell(entries, err)
		pause := r.pace.Poll
		if err == nil {
			retry = r.pace.Retry
		} else {
			pause, retry = retry, min(2*retry, r.pace.RetryMost)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// list returns all entries.
func (r *reader) list(ctx context.Context) (all []registry.Entry, err error) {
	if err := r.client.Refresh(ctx); err != nil && !errors.As(err, new(apiserver.Kept)) {
		return nil, err
	}
	objects, err := r.pages(ctx)
	if err != nil {
		return nil, err
	}
	for _, o := range objects {
		all = append(all, secretEntries(o)...)
	}
	return r.check(all), nil
}

// pages returns all Secrets, page by page.
func (r *reader) pages(ctx context.Context) (all []*object.Object, err error) {
	ctx, cancel := context.WithTimeout(ctx, 4*apiserver.ReadTimeout)
	defer cancel()
	query := url.Values{"limit": {strconv.Itoa(pageSize)}, "labelSelector": {r.selector}}
	objects, reading := 0, object.NewBudget(maxBytes/2).Begin(true)
	admit := func(o *object.Object) error { // a server may ignore the limit of a page
		if objects += 1 + bytes.Count(o.Data, []byte{','}); objects > maxObjects || reading.Admit(o) != nil {
			return fmt.Errorf("%s has more than %d objects or keys, or more than %d MiB: select fewer objects", r.path, maxObjects, maxBytes>>20)
		}
		return nil
	}
	for range maxPages {
		l, err := r.page(ctx, query, admit)
		if err != nil {
			return nil, err
		}
		all = append(all, l.Items...)
		if l.Continue == "" {
			return all, nil
		}
		query.Set("continue", l.Continue)
	}
	return nil, fmt.Errorf("%s has more than %d pages: look for a proxy between the relay and the server", r.path, maxPages)
}

func (r *reader) page(ctx context.Context, query url.Values, admit func(*object.Object) error) (*object.List, error) {
	resp, err := r.client.Current().Get(ctx, r.path, query, apiserver.AcceptJSON)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	d := object.NewDecoder(resp.Body)
	d.Admit = admit
	d.Prepare = func(o *object.Object) { o.Spec = nil }
	return d.List()
}

// probe returns all entries, and findings about the credentials, the server and the right to list. ok reports whether
// they can be listed.
func (r *reader) probe(ctx context.Context) (entries []registry.Entry, found []doctor.Finding, ok bool) {
	if err := r.client.Refresh(ctx); err != nil {
		return nil, []doctor.Finding{doctor.Bad("credentials", r.creds.Place(), "the credentials of the hub can not be used", text.Abbreviate(err.Error()),
			"correct kubeconfig and context, or inCluster; a program of the kubeconfig has to be in allowExec beside it")}, false
	}
	server, what := r.client.Current().Server(), "secrets in "+r.namespace
	entries, err := r.list(ctx)
	switch {
	case err == nil:
		return entries, []doctor.Finding{doctor.Good("permissions", server, "%s can be listed", what)}, true
	case apierrors.IsForbidden(err):
		found = append(found, doctor.Bad("permissions", server, "the identity may not list "+what, text.Abbreviate(apiserver.Cause(err)),
			"grant it list for them: deploy/kubernetes/rbac-hub.yaml has the Role"))
	default:
		found = append(found, apiserver.Finding(server, err))
	}
	return nil, found, false
}

// trustOf returns what the kubeconfigs of a part may use.
func trustOf(c config.Clusters) apiserver.Trust {
	return apiserver.Trust{AllowExec: c.AllowExec, AllowServers: c.AllowServers}
}

// check sets Problem of entries with a bad kubeconfig, and shortens their texts. It checks each content once.
func (r *reader) check(entries []registry.Entry) []registry.Entry {
	next := map[[sha256.Size]byte]string{}
	for i := range entries {
		e := &entries[i]
		e.Note = text.Abbreviate(e.Note)
		if e.Problem != "" {
			e.Problem = text.Abbreviate(e.Problem)
			continue
		}
		sum := sha256.Sum256(e.Kubeconfig)
		problem, known := r.known[sum]
		if !known {
			if err := apiserver.CheckKubeconfig(e.Kubeconfig, r.trust); err != nil {
				problem = text.Abbreviate(err.Error())
			}
		}
		if next[sum] = problem; problem != "" {
			e.Kubeconfig, e.Problem = nil, problem
		}
	}
	r.known = next
	return entries
}

// maxKeys bounds the keys of a Secret: it has 1 MiB at most.
const maxKeys = 1_000

// priorityOf returns the priority of the clusters of an object.
func priorityOf(o *object.Object) (priority int, problem string) {
	text := cmp.Or(o.Annotations[priorityAnnotation], "0")
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return 0, fmt.Sprintf("the annotation %s is %.32q: it is no whole number, and counts as 0", priorityAnnotation, text)
	}
	return int(n), ""
}

// priorityAnnotation has the priority of clusters: those with smaller numbers come first. It is 0 without the
// annotation.
const priorityAnnotation = "meshrelay.io/priority"

// secretEntries returns the entries of a Secret. Each key is the ID of a cluster, and its value the
// kubeconfig.
func secretEntries(o *object.Object) (all []registry.Entry) {
	origin := "secret " + o.Namespace + "/" + o.Name
	var data map[string][]byte
	err := o.Err
	if err == nil && yamlpos.CheckJSON(o.Data, 1+maxKeys) != nil {
		err = fmt.Errorf("it has more than %d keys: keep kubeconfigs in several secrets", maxKeys)
	}
	if err == nil && len(o.Data) > 0 {
		err = json.Unmarshal(o.Data, &data)
	}
	if err != nil {
		return []registry.Entry{{Origin: origin, Problem: "the secret can not be read: " + err.Error()}}
	}
	priority, note := priorityOf(o)
	for _, id := range slices.Sorted(maps.Keys(data)) {
		all = append(all, registry.Entry{ID: id, Origin: origin, Kubeconfig: data[id], Priority: priority, Note: note})
	}
	return all
}
