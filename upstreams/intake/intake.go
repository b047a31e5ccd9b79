// Package intake decides what is served of what a source has told.
package intake

// Intake is the state machine of one upstream.
type Intake struct{}
