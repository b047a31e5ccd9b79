package upstreams

// errorOf is for orders where only the error matters.
func errorOf(_ Effect, err error) error { return err }

// thawNow ends a freeze as an operator without a reason does.
func (g *gate) thawNow() error { return g.thaw("unfreeze") }
