package config

// Cluster is the connection to the API server of a cluster.
type Cluster struct {
	Kubeconfig string   `yaml:"kubeconfig" path:"file"`
	Context    string   `yaml:"context"` // empty: the current one
	InCluster  bool     `yaml:"inCluster"`
	AllowExec  []string `yaml:"allowExec,omitempty"` // of Kubeconfig
}
