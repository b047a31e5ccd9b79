package bearer

import (
	"context"
	"crypto/sha256"
	"errors"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/util/cache"
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
	issuer Issuer
	atOnce *semaphore.Weighted
	same   singleflight.Group
	kept   *cache.LRUExpireCache // of keptReview, by the SHA-256 of the token
}

type keptReview struct {
	Review
	at time.Time
}

func newReviews(i Issuer) *reviews {
	return &reviews{issuer: i, atOnce: semaphore.NewWeighted(maxReviewing), kept: cache.NewLRUExpireCache(maxReviews)}
}

// of returns a review of a token that is not older than maxAge. It asks once for all who wait for the same token.
func (r *reviews) of(ctx context.Context, token string, maxAge time.Duration) (Review, error) {
	key := sha256.Sum256([]byte(token))
	if value, ok := r.kept.Get(key); ok {
		if kept := value.(keptReview); time.Since(kept.at) < maxAge {
			return kept.Review, nil
		}
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
		answer, err := r.issuer.Reviewer.Review(ctx, token, r.issuer.Audiences)
		if err == nil {
			r.kept.Add(key, keptReview{answer, began}, reviewAge)
		}
		return answer, err
	})
	if err != nil {
		return Review{}, err
	}
	return answer.(Review), nil
}
