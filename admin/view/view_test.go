package view

import (
	"testing"
	"time"
)

func TestCountsAgreeWithTheirNouns(t *testing.T) {
	for n, want := range map[int]string{0: "0 deletions are", 1: "1 deletion is", 2: "2 deletions are", 11: "11 deletions are"} {
		if got := Count(n, "deletion") + " " + Agree(n, "is", "are"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestATimeOfTheDayIsTheLastOne(t *testing.T) {
	for text, want := range map[string]string{"03:12": "2026-11-21T03:12:00Z", "03:15": "2026-11-20T03:15:00Z", "2026-11-01 10:00": "2026-11-01T10:00:00Z"} {
		if got, err := ClockTime(text, time.Date(2026, 11, 21, 3, 14, 7, 0, time.UTC)); err != nil || got.Format(time.RFC3339) != want {
			t.Errorf("%s: %v %v", text, got, err)
		}
	}
}

func TestAgesAreKubectls(t *testing.T) {
	const day = 24 * time.Hour
	for d, want := range map[time.Duration]string{
		-5 * time.Second: "<invalid>", -time.Second: "0s", 0: "0s", 119 * time.Second: "119s", 2 * time.Minute: "2m",
		5*time.Minute + 10*time.Second: "5m10s", 10 * time.Minute: "10m", 179 * time.Minute: "179m", 3 * time.Hour: "3h",
		7*time.Hour + 5*time.Minute: "7h5m", 8 * time.Hour: "8h", 47 * time.Hour: "47h", 2 * day: "2d", 7*day + 5*time.Hour: "7d5h",
		8 * day: "8d", 729 * day: "729d", 2 * 365 * day: "2y", 2*365*day + 30*day: "2y30d", 8 * 365 * day: "8y", 9*365*day + 3*day: "9y",
	} {
		if got := Age(d); got != want {
			t.Errorf("Age(%v) = %s, want %s", d, got, want)
		}
	}
}
