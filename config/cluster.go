package config

import "fmt"

// Cluster is the connection to the API server of a cluster. Every section that needs one has it under the key cluster.
type Cluster struct {
	Kubeconfig string `yaml:"kubeconfig" path:"file"`
	Context    string `yaml:"context"` // empty: the current one
	InCluster  bool   `yaml:"inCluster"`
	// AllowExec are the programs that Kubeconfig may run, as it writes them.
	AllowExec []string `yaml:"allowExec,omitempty"`
}

// Connector is a Source that can tell whether a connection to an API server can be used.
type Connector interface {
	// CheckCluster returns a mistake in the kubeconfig, or in a file that it names. It connects to nothing.
	CheckCluster(c Cluster) error
}

// cluster checks the connection to an API server.
func (v *validator) cluster(at string, c Cluster) {
	switch {
	case c.InCluster && c.Kubeconfig != "":
		v.errorf(at+".inCluster", "inCluster and kubeconfig are both set: leave out one")
	case !c.InCluster && c.Kubeconfig == "":
		v.errorf(at, "neither kubeconfig nor inCluster is set: name a kubeconfig, or set inCluster: true to use the service account of the pod")
	case c.InCluster && c.Context != "":
		v.errorf(at+".context", "only a kubeconfig has contexts, and inCluster uses none: leave it out")
	case c.InCluster && len(c.AllowExec) > 0:
		v.errorf(at+".allowExec", "only a kubeconfig runs programs, and inCluster uses none: leave it out")
	}
	for i, program := range c.AllowExec {
		v.errorIf(program == "", fmt.Sprintf("%s.allowExec[%d]", at, i), "empty: write the command as the kubeconfig has it")
	}
}
