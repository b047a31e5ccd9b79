package config

// Replicas configures what several relays with one config share.
type Replicas struct {
	// Kubernetes is where all replicas have what people have ordered; nil: the relay is alone.
	Kubernetes *ReplicaStore `yaml:"kubernetes,omitempty"`
}

// ReplicaStore is a ConfigMap of an API server.
type ReplicaStore struct {
	Kubeconfig string   `yaml:"kubeconfig" path:"file"`
	Context    string   `yaml:"context"` // empty: the current one
	InCluster  bool     `yaml:"inCluster"`
	AllowExec  []string `yaml:"allowExec,omitempty"` // of Kubeconfig
	Namespace  string   `yaml:"namespace" default:"istio-system"`
}

// maxReplicaName is what a key of a ConfigMap may have, less a prefix.
const maxReplicaName = 240

func (v *validator) replicas(c *Config) {
	if k := c.Replicas.Kubernetes; k != nil {
		const at = "replicas.kubernetes"
		v.hub(at, k.Kubeconfig, k.Context, k.InCluster, k.AllowExec, k.Namespace, "")
		v.errorIf(len(c.Node.ID) > maxReplicaName, "node.id", "it has %d characters: of one of several replicas it may have %d", len(c.Node.ID), maxReplicaName)
	}
}
