package config

// Source is the section of an upstream that says where its resources come from: a pointer to a
// struct with the tags of this package (fields.go). Each kind of source has its own type. A section
// that reads the resources of a cluster has the method OfCluster() bool.
type Source interface {
	// Kind returns the name of the section. It is the same for all values of one Go type.
	Kind() string
	// Relayed reports whether the source is a control plane, which may have got resources from this
	// relay. It is the same for all values of one Go type.
	Relayed() bool
	// Check reports mistakes in the section of u that tags do not find. before are the upstreams
	// before u in the file.
	Check(c Checker, u Upstream, before []Upstream)
}

// ofCluster reports whether the resources are those of a cluster.
func (u Upstream) ofCluster() bool {
	c, ok := u.Source.(interface{ OfCluster() bool })
	return u.relayed() || ok && c.OfCluster()
}

func (u Upstream) relayed() bool { return u.Source != nil && u.Source.Relayed() }

// Checker collects mistakes in the fields of a section. Field names are like "tls.caFile".
type Checker struct {
	v  *validator
	at string
}

// Errorf reports a mistake in a field, unless the field already has one.
func (c Checker) Errorf(field, format string, args ...any) {
	c.v.errorf(join(c.at, field), format, args...)
}

// Reported reports whether a field has a mistake.
func (c Checker) Reported(field string) bool { return c.v.reported(join(c.at, field)) }

// Cluster reports mistakes in the connection to an API server.
func (c Checker) Cluster(field string, cluster Cluster) { c.v.cluster(join(c.at, field), cluster) }

// Address reports an address that is not a host:port to connect to.
func (c Checker) Address(field, address string) { c.v.address(join(c.at, field), address, 1) }
