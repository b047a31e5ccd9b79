package mirror

import "meshrelay/internal/panics"

// Panic is a panic as an error, see internal/panics.
type Panic = panics.Panic

// Recovered is panics.Recovered, for the intake.
func Recovered(value any) *Panic { return panics.Recovered(value) }
