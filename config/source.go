package config

// Source is the section of an upstream that tells where its resources come from: a pointer to a
// struct with the tags of this package (fields.go). Each kind of source has a type of its own.
// A section whose resources are all those of a cluster, also of other revisions, has the method
// OfCluster() bool. One with files that can be wrong has CheckFiles(Checker), which Check of this package
// calls: it reads them, and connects to nothing.
type Source interface {
	// Kind returns the name of the section. Like Relayed, it is the same for all of a kind.
	Kind() string
	// Relayed reports whether resources come from a control plane, which may have them from
	// this relay, rather than from their author.
	Relayed() bool
	// Check reports the mistakes that tags do not find in the section of u. before are the
	// upstreams before it in the file.
	Check(c Checker, u Upstream, before []Upstream)
}

// ofCluster reports whether resources are those of a cluster, where each control plane has its own.
func (u Upstream) ofCluster() bool {
	c, ok := u.Source.(interface{ OfCluster() bool })
	return u.relayed() || ok && c.OfCluster()
}

func (u Upstream) relayed() bool { return u.Source != nil && u.Source.Relayed() }

// Checker takes the mistakes in the fields of a section, such as "tls.caFile".
type Checker struct {
	v  *validator
	at string
}

// Errorf reports a mistake in a field, unless it has one already.
func (c Checker) Errorf(field, format string, args ...any) {
	c.v.errorf(join(c.at, field), format, args...)
}

// Reported reports whether a field has a mistake.
func (c Checker) Reported(field string) bool { return c.v.reported(join(c.at, field)) }

// Address reports a text that is no host:port to connect to.
func (c Checker) Address(field, address string) { c.v.address(join(c.at, field), address, 1) }
