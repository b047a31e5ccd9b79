package bearer

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"meshrelay/internal/identity"
	"meshrelay/internal/jwt"
)

// Issuers are the issuers whose tokens are accepted, in their order. Any goroutine may call their methods, but for
// Refresh and Close.
type Issuers struct {
	all      []*issuer
	reviewer *issuer // nil: there is none
	wanted   string
}

type issuer struct {
	Issuer
	source  *source // nil: there is a Reviewer
	seen    *Keys   // by Refresh
	reviews *reviews
}

// Open reads the files with keys. Of issuers with a Reviewer, it uses the first. The keys of URLs come with
// Refresh.
func Open(all []Issuer) (*Issuers, error) {
	is := &Issuers{}
	var wanted []string
	for _, i := range all {
		one := &issuer{Issuer: i}
		if i.Reviewer == nil {
			var err error
			if one.source, err = openSource(i); err != nil {
				return nil, fmt.Errorf("tokens %s: %w", i.Name, err)
			}
			one.seen = one.source.now()
			wanted = append(wanted, fmt.Sprintf("a JWT of issuer %q for %s", i.Issuer, quoted(i.Audiences)))
		} else {
			one.reviews = newReviews(i)
			wanted = append(wanted, "a token that the API server of "+i.Name+" accepts for "+quoted(i.Audiences))
			if is.reviewer == nil {
				is.reviewer = one
			}
		}
		is.all = append(is.all, one)
	}
	is.wanted = strings.Join(wanted, ", or ")
	return is, nil
}

// Wanted describes the tokens that are accepted.
func (is *Issuers) Wanted() string { return is.wanted }

// Identify returns what a token proves. maxAge is the age of a review that is still used: zero for that of a new
// stream. An error is an *Error.
func (is *Issuers) Identify(ctx context.Context, raw string, now time.Time, maxAge time.Duration) (who identity.Identity, err error) {
	if len(raw) > maxToken {
		return who, is.refuse(false, fmt.Sprintf("a token of %d bytes", len(raw)), fmt.Sprintf("it has more than %d KiB", maxToken>>10))
	}
	c, isJWT := jwt.Look(raw)
	shown := "a token that is no JWT"
	if isJWT {
		shown = describe(c)
		for _, i := range is.all {
			if i.source == nil || i.Issuer.Issuer != c.Issuer {
				continue
			}
			if i.source.now() == nil {
				return who, is.refuse(true, shown, "the keys of its issuer could not be read yet")
			}
			if who, err = i.verify(ctx, i.source, raw, now); err != nil {
				return identity.Identity{}, is.refuse(false, shown, err.Error())
			}
			return who, nil
		}
	}
	switch end := jwt.Time(c.Expires); {
	case is.reviewer == nil && isJWT:
		return who, is.refuse(false, shown, "its issuer is not known")
	case is.reviewer == nil:
		return who, is.refuse(false, shown, "no API server reviews it")
	case isJWT && !end.IsZero() && !end.After(now):
		return who, is.refuse(false, shown, "it has expired")
	}
	if maxAge == 0 {
		maxAge = reviewAge
	}
	i := is.reviewer
	review, err := i.reviews.of(ctx, raw, maxAge)
	switch {
	case err != nil:
		return who, is.refuse(true, shown, "the API server of "+i.Name+" can not review it: "+short(err.Error()))
	case !review.Authenticated:
		return who, is.refuse(false, shown, "the API server of "+i.Name+" does not accept it")
	case !i.accepts(review.Audiences): // a server that knows no audiences returns none
		return who, is.refuse(false, shown, "the API server of "+i.Name+" does not accept it for these audiences")
	}
	// The server has accepted the whole of the token, so its expiry counts. The rest is as the server tells.
	if who, err = i.identity(jwt.Claims{Subject: review.User, Expires: c.Expires}, review.Groups); err != nil {
		return identity.Identity{}, is.refuse(false, shown, err.Error())
	}
	who.Reviewed = true
	return who, nil
}

func (is *Issuers) refuse(unavailable bool, shown, why string) error {
	return &Error{unavailable, fmt.Sprintf("the client sent %s: %s; want %s", shown, why, is.wanted)}
}

// Refresh reads the keys of all issuers, and the credentials of reviewers, again. changed reports whether keys are
// others than at the last call. What could not be read stays as it was; failed is called with the reason.
func (is *Issuers) Refresh(ctx context.Context, failed func(what string, err error)) (changed bool) {
	errs := make([]error, len(is.all))
	var g errgroup.Group
	for n, i := range is.all {
		g.Go(func() error {
			if i.source != nil {
				errs[n] = i.source.refresh(ctx)
			} else {
				errs[n] = i.Reviewer.Refresh(ctx)
			}
			return nil
		})
	}
	_ = g.Wait()
	for n, i := range is.all {
		if errs[n] != nil && ctx.Err() == nil {
			failed(i.Name, errs[n])
		}
		if i.source != nil && i.source.now() != i.seen {
			i.seen, changed = i.source.now(), true
		}
	}
	return changed
}

// Close closes the connections of reviewers.
func (is *Issuers) Close() {
	for _, i := range is.all {
		if i.Reviewer != nil {
			i.Reviewer.Close()
		}
	}
}
