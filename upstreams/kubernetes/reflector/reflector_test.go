package reflector

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// These are what an upgrade of client-go may change.
var (
	_ cache.ReflectorStore           = store{}
	_ cache.ListerWatcherWithContext = listerWatcher{}
	_ watch.Decoder                  = (*stream)(nil)
)

func TestAPauseEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	<-endingClock{ctx: ctx}.After(time.Millisecond)
	long := endingClock{ctx: ctx}.After(time.Hour)
	cancel()
	<-long
	<-endingClock{ctx: ctx}.After(time.Hour)
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
