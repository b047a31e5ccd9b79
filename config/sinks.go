package config

import (
	"fmt"
	"slices"
)

// Values of Sink.Mode and Sink.Conflicts.
const (
	SinkApply     = "apply"
	ConflictsTake = "take"
)

// Sink writes the resources of a view into a cluster.
type Sink struct {
	// Name is unique. It is in labels and names of objects of the cluster.
	Name    string  `yaml:"name"`
	Cluster Cluster `yaml:"cluster"`
	// ClusterUID is the UID of the namespace kube-system of the cluster. Empty: that of the first one that the sink wrote into.
	ClusterUID string `yaml:"clusterUID"`
	// Namespace has the Lease of the sink.
	Namespace string `yaml:"namespace" default:"istio-system"`
	// View is the name of an element of Config.Views.
	View  string `yaml:"view"`
	Mode  string `yaml:"mode" default:"dryRun" oneof:"dryRun apply"`
	Prune bool   `yaml:"prune"`
	// Conflicts is about fields of the sink's own objects that another manager owns.
	Conflicts string `yaml:"conflicts" default:"skip" oneof:"skip take"`
	// Adopt takes over objects of the same name that no sink has written.
	Adopt            bool      `yaml:"adopt"`
	CreateNamespaces bool      `yaml:"createNamespaces"`
	Guard            SinkGuard `yaml:"guard"`
	WritesPerSecond  int       `yaml:"writesPerSecond" default:"20" range:"1 10000"`
}

// SinkGuard holds deletions of more than Percent and more than Count objects. It never ends by itself.
type SinkGuard struct {
	Percent int `yaml:"percent" default:"10" range:"0 100"`
	Count   int `yaml:"count" default:"5" range:"0 1000000000"`
}

// maxSinkName leaves room for "meshrelay-sink-" in a field manager.
const maxSinkName = 40

// CheckSinkName returns an error if a sink can not have a name.
func CheckSinkName(name string) error {
	if !nameShape.MatchString(name) || len(name) > maxSinkName {
		return fmt.Errorf("%.64q is not a name: write 1 to %d lower-case letters, digits and dashes, without a dash at the beginning or end", name, maxSinkName)
	}
	return nil
}

func (v *validator) sinks(c *Config) {
	for i, s := range c.Sinks {
		at := fmt.Sprintf("sinks[%d]", i)
		if err := CheckSinkName(s.Name); err != nil {
			v.errorf(at+".name", "%v", err)
		}
		if n := slices.IndexFunc(c.Sinks[:i], func(o Sink) bool { return o.Name == s.Name }); n >= 0 {
			v.errorf(at+".name", "%q is the name of sinks[%d] already: names must differ", s.Name, n)
		}
		v.cluster(at+".cluster", s.Cluster)
		v.errorIf(s.ClusterUID != "" && (!nameShape.MatchString(s.ClusterUID) || len(s.ClusterUID) > 128), at+".clusterUID", "%.130q is not the UID of a cluster: kubectl get namespace kube-system -o jsonpath='{.metadata.uid}' prints it", s.ClusterUID)
		v.namespace(at+".namespace", s.Namespace)
		switch known := slices.ContainsFunc(c.Views, func(w View) bool { return w.Name == s.View }); {
		case s.View == "":
			v.errorf(at+".view", "missing: name the view whose resources the sink writes")
		case !known:
			v.errorf(at+".view", "there is no view %q: add it to views", s.View)
		}
	}
}
