package kubernetes

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakekube"
)

// busy has the server answer requests of a path with 429 and a Retry-After, as often as times tells. The
// channel gets when the server has answered so, and when it is asked again.
func (s *apiServer) busy(path, seconds string, times int) <-chan time.Time {
	at := make(chan time.Time, times+1)
	s.Fault = func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, path) {
			return false
		}
		s.Lock()
		defer s.Unlock()
		select {
		case at <- time.Now():
		default:
		}
		if times--; times < 0 {
			return false
		}
		w.Header().Set("Retry-After", seconds)
		fakekube.Fail(w, http.StatusTooManyRequests, "TooManyRequests")
		return true
	}
	return at
}

// askedWithRetryAfter are the requests of each part: what is mirrored, what is served, and by whom.
var askedWithRetryAfter = []string{"/serviceentries", "/apis", "/kube-system"}

func TestAServerIsAskedAgainAfterTheTimeThatItAsksFor_K8(t *testing.T) {
	for _, path := range askedWithRetryAfter {
		inBubble(t, strings.Trim(path, "/"), func(t *testing.T) {
			s := newAPIServer(t)
			s.entry("shop/a", "a.x")
			at := s.busy(path, "1", 2)
			w := s.mirrors("", "")
			w.serves("ServiceEntry shop/a")
			w.synced()
			first, second, third := <-at, <-at, <-at
			if a, b := second.Sub(first), third.Sub(second); a < time.Second || b < time.Second {
				t.Errorf("it was asked again after %v, and after %v, want a second at least", a, b)
			}
		})
	}
}

// A relay that ends, and an upstream that leaves the config, do not wait for a server.
func TestAWaitForAServerEndsWithTheSource_K8(t *testing.T) {
	for _, path := range askedWithRetryAfter {
		inBubble(t, strings.Trim(path, "/"), func(t *testing.T) {
			s := newAPIServer(t)
			at := s.busy(path, "10", 100)
			var end time.Time
			t.Cleanup(func() { // after what mirrors has begun has ended
				if took := time.Since(end); took > 0 {
					t.Errorf("the end took %v", took)
				}
			})
			s.mirrors("", "")
			<-at
			await.Settle(5 * time.Second)
			if end = time.Now(); len(at) > 0 {
				t.Error("it does not wait")
			}
		})
	}
}
