package clusters

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"meshrelay/config"
	"meshrelay/internal/text"
	"meshrelay/internal/yamlpos"
	"meshrelay/upstreams/kubernetes/apiserver"
	"meshrelay/upstreams/kubernetes/clusters/registry"
	"meshrelay/upstreams/kubernetes/object"
)

// trustOf returns what the kubeconfigs of a part may use.
func trustOf(c config.Clusters) apiserver.Trust {
	return apiserver.Trust{AllowExec: c.AllowExec, AllowServers: c.AllowServers}
}

// checker checks kubeconfigs, each content once.
type checker struct {
	trust apiserver.Trust
	known map[[sha256.Size]byte]string // the problems of the last entries, empty for a good kubeconfig
}

// check sets Problem of entries with a bad kubeconfig, and shortens their texts.
func (c *checker) check(entries []registry.Entry) []registry.Entry {
	next := map[[sha256.Size]byte]string{}
	for i := range entries {
		e := &entries[i]
		e.Note = text.Abbreviate(e.Note)
		if e.Problem != "" {
			e.Problem = text.Abbreviate(e.Problem)
			continue
		}
		sum := sha256.Sum256(e.Kubeconfig)
		problem, known := c.known[sum]
		if !known {
			if err := apiserver.CheckKubeconfig(e.Kubeconfig, c.trust); err != nil {
				problem = text.Abbreviate(err.Error())
			}
		}
		if next[sum] = problem; problem != "" {
			e.Kubeconfig, e.Problem = nil, problem
		}
	}
	c.known = next
	return entries
}

// maxKeys bounds the keys of a Secret: it has 1 MiB at most.
const maxKeys = 1_000

// priorityOf returns the priority of the clusters of an object.
func priorityOf(o *object.Object) (priority int, problem string) {
	text := o.Annotations[priorityAnnotation]
	if text == "" {
		return 0, ""
	}
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
