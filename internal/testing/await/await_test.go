package await

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// failing takes the failure of a wait.
type failing struct{ text string }

func (f *failing) Fatalf(format string, args ...any) { f.text = fmt.Sprintf(format, args...) }

func TestAWaitEndsWithItsCondition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		Until(t, "a second has passed", func() bool { return time.Since(began) >= time.Second })
		Equal(t, "two seconds have passed", 2, func() int { return int(time.Since(began).Seconds()) })
		c := make(chan int, 2)
		c <- 7
		if got := Value(t, "a number", c); got != 7 {
			t.Errorf("the channel gave %d", got)
		}
		c <- 8
		close(c)
		Closed(t, "the channel", c)
		Return(t, "a function", func() { Pass(time.Second) })
		if since := time.Since(began); since >= Limit {
			t.Errorf("it took %s", since)
		}
	})
}

func TestAWaitInVainTellsWhatItSawLast(t *testing.T) {
	for name, tc := range map[string]struct {
		wait func(t T)
		want []string
	}{
		"condition": {func(t T) { Until(t, "tea", func() bool { return false }, func() any { return "coffee" }) }, []string{"tea", "last seen: coffee"}},
		"equal":     {func(t T) { Equal(t, "cups", 2, func() int { return 1 }) }, []string{"cups", "last seen: 1, want 2"}},
		"value":     {func(t T) { Value(t, "tea", make(chan int)) }, []string{"in vain: tea"}},
		"no value":  {func(t T) { c := make(chan int); close(c); Value(t, "tea", c) }, []string{"closed before it was so: tea"}},
		"closed":    {func(t T) { Closed(t, "shop", make(chan int)) }, []string{"in vain: shop"}},
		"return":    {func(t T) { Return(t, "waiter", func() { Pass(2 * Limit) }) }, []string{"in vain: waiter"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var f failing
				tc.wait(&f)
				for _, want := range tc.want {
					if !strings.Contains(f.text, want) {
						t.Errorf("the failure is %q, without %q", f.text, want)
					}
				}
				Pass(2 * Limit) // what still runs ends
			})
		})
	}
}

func TestTimePassesInBubblesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		Settle(time.Hour)
		if time.Since(began) != time.Hour {
			t.Errorf("%s passed", time.Since(began))
		}
	})
	defer func() {
		if recover() == nil {
			t.Error("Pass slept outside of a bubble")
		}
	}()
	Pass(time.Nanosecond)
}
