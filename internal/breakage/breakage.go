// Package breakage has switches that break the relay on purpose, one for each invariant
// that the chaos suite checks, so that the suite can be shown to fail. Each is an untyped
// constant, false unless the program is built with the tag of its name, so that what it
// guards is not part of a normal build:
//
//	break_i1  what clients hold disappears although no source has deleted it
//	break_i2  an update never reaches the clients
//	break_i3  clients see an older content of a config after a newer one
//	break_i4  connections leave something behind
//
// The package must not hold anything else, and a release must not be built with its tags.
package breakage
