package bearer

import (
	"context"
	"crypto/sha256"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"
)

const (
	reviewTimeout = 3 * time.Second
	// reviewAge is how long a review is used for new streams.
	reviewAge = 10 * time.Second
	// maxReviews bounds the reviews that are kept, and maxReviewing those at the same time.
	maxReviews, maxReviewing = 1024, 16
)

// Reviewer asks an API server about tokens. Any goroutine may call its methods, but for Refresh and Close.
type Reviewer interface {
	// Review returns what the server tells of a token. Errors must not quote the token.
	Review(ctx context.Context, token string, audiences []string) (Review, error)
	// Refresh reads the credentials for the server again.
	Refresh(ctx context.Context) error
	Close()
}

// Review is the answer to a TokenReview.
type Review struct {
	Authenticated bool
	User          string
	Groups        []string
	Audiences     []string // for which the server has accepted the token
}

// reviews asks a Reviewer, and keeps its answers for a short time. Any goroutine may call its methods.
type reviews struct {
	ask    func(ctx context.Context, token string) (Review, error)
	atOnce *semaphore.Weighted
	same   singleflight.Group

	mu   sync.Mutex // guards kept
	kept map[[sha256.Size]byte]keptReview
}

type keptReview struct {
	Review
	at time.Time
}

func newReviews(i Issuer) *reviews {
	return &reviews{
		ask: func(ctx context.Context, token string) (Review, error) {
			return i.Reviewer.Review(ctx, token, i.Audiences)
		},
		atOnce: semaphore.NewWeighted(maxReviewing), kept: map[[sha256.Size]byte]keptReview{},
	}
}

// of returns a review of a token that is not older than maxAge. It asks once for all who wait for the same token.
func (r *reviews) of(ctx context.Context, token string, maxAge time.Duration) (Review, error) {
	key := sha256.Sum256([]byte(token))
	r.mu.Lock()
	kept, ok := r.kept[key]
	r.mu.Unlock()
	if ok && time.Since(kept.at) < maxAge {
		return kept.Review, nil
	}
	// The stream of the first may end while others wait.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reviewTimeout)
	defer cancel()
	answer, err, _ := r.same.Do(string(key[:]), func() (any, error) {
		if r.atOnce.Acquire(ctx, 1) != nil {
			return nil, errors.New("too many tokens are reviewed at the same time")
		}
		defer r.atOnce.Release(1)
		began := time.Now()
		answer, err := r.ask(ctx, token)
		if err == nil {
			r.keep(key, keptReview{answer, began})
		}
		return answer, err
	})
	if err != nil {
		return Review{}, err
	}
	return answer.(Review), nil
}

func (r *reviews) keep(key [sha256.Size]byte, one keptReview) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for old, kept := range r.kept {
		if len(r.kept) < maxReviews {
			break
		}
		if one.at.Sub(kept.at) >= reviewAge {
			delete(r.kept, old)
		}
	}
	if len(r.kept) >= maxReviews {
		for old := range r.kept { // any
			delete(r.kept, old)
			break
		}
	}
	r.kept[key] = one
}
