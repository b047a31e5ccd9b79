package relay

import (
	"testing"

	"meshrelay/config"
	"meshrelay/downstream/admit"
)

func TestEveryLimitIsTakenOver(t *testing.T) {
	want := admit.Limits{MaxConnections: 2, MaxStreams: 2, MaxRequestBytes: 3}
	if got := limitsOf(config.Downstream{MaxStreams: 2, MaxRequestBytes: 3}).Limits; got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
