// Package upstreams runs the upstreams of a config. A Manager has one driver (upstream) for each of them. A
// driver has a source, an intake and a mirror.Store:
//
//   - the source reads the upstream (packages xds, file and kubernetes, or any other Kind);
//   - the intake decides which resources are served (package intake);
//   - the driver owns the lock and the timer of the intake, and gives its changes to the disk.
//
// When a source fails, its resources are still served: only the source itself removes a resource. No upstream
// touches the store of another.
//
// At the start of a relay, clients wait for the upstreams that firstSync names. AwaitFirstSync collects what is
// known of each upstream, and start.decide, which has no clock, decides for which ones clients wait.
//
// The package must not know who reads the stores, and how a source works.
package upstreams
