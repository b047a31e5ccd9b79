package errlist

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/hashicorp/go-multierror"
)

func TestJoinedErrorsComeApartAtAnyDepth(t *testing.T) {
	a, b, c := errors.New("a"), errors.New("b"), errors.New("c")
	wrapped := fmt.Errorf("d: %w", errors.Join(a, b))
	got := Split(errors.Join(a, multierror.Append(nil, b, errors.Join(c)), wrapped))
	if want := []error{a, b, c, wrapped}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := Split(a); !slices.Equal(got, []error{a}) {
		t.Errorf("one error became %v", got)
	}
	if got := Split(nil); got != nil {
		t.Errorf("nil became %v", got)
	}
}
