// Package conflicts finds where upstreams disagree: Keys holds the keys that several upstreams have a copy of,
// and Hosts the hosts that several served resources claim. It does not resolve conflicts: package merge and
// istiod do. It must not know who reads them.
package conflicts
