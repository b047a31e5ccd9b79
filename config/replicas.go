package config

// Replicas configures what several relays with one config share: a ConfigMap with what people have ordered.
type Replicas struct {
	Cluster   Cluster `yaml:"cluster"`
	Namespace string  `yaml:"namespace" default:"istio-system"`
}

// maxReplicaName is what a key of a ConfigMap may have, less a prefix.
const maxReplicaName = 240

func (v *validator) replicas(c *Config) {
	if r := c.Replicas; r != nil {
		v.cluster("replicas.cluster", r.Cluster)
		v.namespace("replicas.namespace", r.Namespace)
		v.errorIf(len(c.Node.ID) > maxReplicaName, "node.id", "it has %d characters: of one of several replicas it may have %d", len(c.Node.ID), maxReplicaName)
	}
}
