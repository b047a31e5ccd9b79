// Package conflicts finds where upstreams disagree: Keys holds the keys of which several have a
// copy, Hosts the hosts that several served resources claim. It must not know who reads the
// conflicts, and does not resolve them: package merge and istiod do.
package conflicts
