// Package downstream is the xDS endpoint: an ADS server in state of the world (SotW) and
// delta form, over immutable encoded snapshots of the merged view.
//
// A Generator makes the items of a type of resources; that of MCP-over-xDS makes one of each.
// For each view and type there is a collection of package snapshot. What one client asked for
// and has been sent is a Set of package subscription: a cursor for each type. While its transport
// takes more, a goroutine sends the difference between the cursor and
// the newest snapshot. There is no queue: a client that reads slowly skips the states in
// between, and costs nothing but its socket.
//
// Clients may see less than the merged view: a View chooses copies, and what came from a
// client's own cluster or is meant for other revisions is left out. What remains is merged
// by itself, so that another upstream's copy takes the place of one that is left out. Such a
// derived view shares the pages of the merged view wherever they are the same.
//
// When the rules change (Reload), a client's view becomes another one, or forks into several,
// with all that it remembers: to the client it is a change of content like any other.
//
// Limits protect the clients from one another. A client that is over a limit gets a gRPC
// status with its name, is counted by reason, and is the only one that notices.
//
// The package must not know where resources come from: it reads them through the Resources
// interface, and Push names what may have changed.
package downstream
