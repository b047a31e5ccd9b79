package upstreams

// errorOf is for orders where only the error matters.
func errorOf(_ Effect, err error) error { return err }

// releaseAll carries out whatever is held.
func (g *gate) releaseAll() error { return errorOf(g.release(Order{All: true})) }

// freezeNow freezes without an end.
func (g *gate) freezeNow() error { return errorOf(g.freeze(Order{})) }

// thawNow ends a freeze as an operator without a reason does.
func (g *gate) thawNow() error { return g.thaw("unfreeze") }
