// Package federation holds what its subpackages share: two kinds, the hosts and the
// visibility of a resource, and the error for a wrong rule.
//
// It must not know what a subpackage decides. The subpackages decide what happens to resources between
// clusters:
//
//   - filter: which resources of a source are imported;
//   - rewrite: how names, references, metadata and endpoints change on the way in;
//   - services: how the Kubernetes services of another cluster are reached;
//   - merge: which copy of a key is served;
//   - conflicts: which keys of an Aggregate have several copies, and which hosts have several owners.
//
// All except conflicts are pure functions over mirror.Resource: they compile rules and apply them. They must not
// know where resources come from, who reads them, or the config file.
package federation
