// Package statepb has the messages of the state on the local disk, generated from state.proto. It
// must not know which file has them.
package statepb
