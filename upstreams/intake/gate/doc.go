// Package gate decides what is served of an upstream.
//
// The caller tells for each key what the source wants: a resource, that the key is gone, or that
// the rules leave it out. The gate serves that, holds it, or keeps what is served. A key that simply
// follows its source has no entry: the store has it. states.go has what happens to the others.
//
// The package knows no kind by name, and not what a source is made of: it imports package mirror and the
// config, nothing else. What is special about a kind is one of its Settings. A Gate has no I/O, no goroutine and
// no clock.
//
// Its files call down only, in this order:
//
//   - contact.go: what is due, the drop of what has expired, and how the contact with the source is lost and regained
//   - guard.go: updates, and which deletions pass
//   - hold.go: how a hold begins, and how its deletions are carried out
//   - gate.go: the Gate, its keys, and what happens to one
//   - clock.go: the contact itself, which kinds have expired, and how long a hold lasts
//   - sizes.go: how many resources there were
//   - states.go: the states of a key, and the table of transitions
package gate
