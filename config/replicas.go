package config

// Replicas configures what several relays with one config share.
type Replicas struct {
	// Kubernetes is where replicas keep the decisions of people and guards; nil: each decides alone.
	Kubernetes *ReplicaStore `yaml:"kubernetes,omitempty"`
	// Peers tells how replicas ask each other; nil: they do not.
	Peers *Peers `yaml:"peers,omitempty"`
}

// ReplicaStore is a ConfigMap of an API server.
type ReplicaStore struct {
	Kubeconfig string   `yaml:"kubeconfig" path:"file"`
	Context    string   `yaml:"context"` // empty: the current one
	InCluster  bool     `yaml:"inCluster"`
	AllowExec  []string `yaml:"allowExec,omitempty"` // of Kubeconfig
	Namespace  string   `yaml:"namespace" default:"istio-system"`
	Name       string   `yaml:"name" default:"relay-decisions"`
}

func (v *validator) replicas(c *Config) {
	if k := c.Replicas.Kubernetes; k != nil {
		const at = "replicas.kubernetes"
		v.hub(at, k.Kubeconfig, k.Context, k.InCluster, k.AllowExec, k.Namespace, "")
		v.errorIf(!nameShape.MatchString(k.Name), at+".name", "%q is not a name of a ConfigMap: write 1 to 63 lower-case letters, digits and dashes", k.Name)
	}
	if p := c.Replicas.Peers; p != nil {
		v.peers("replicas.peers", p, c)
	}
}
