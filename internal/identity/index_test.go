package identity

import (
	"fmt"
	"testing"
)

// TestAThousandExactPatternsTakeOneLook: a client is not compared with patterns without wildcards.
func TestAThousandExactPatternsTakeOneLook(t *testing.T) {
	x := NewIndex()
	for i := range 1000 {
		p, err := Parse(fmt.Sprint("dns:a", i))
		if err != nil {
			t.Fatal(err)
		}
		x.Add(p, i)
	}
	if n := len(x.globs); n > 0 {
		t.Errorf("%d patterns are read for each client", n)
	}
	if n := x.First([]string{"dns:a999"}); n != 999 {
		t.Errorf("the first rule is %d", n)
	}
}
