// Package conflicts finds where upstreams disagree: Keys holds the keys that several have a
// copy of, Hosts the hosts that several served resources claim. It must not know who reads the
// conflicts, and does not resolve them: package merge and istiod do.
package conflicts
