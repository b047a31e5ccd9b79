package intake

// Effect is what an order changes of what is served of an upstream.
type Effect struct{}
