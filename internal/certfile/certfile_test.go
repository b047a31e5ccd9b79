package certfile

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/internal/lastgood"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/testca"
)

func TestACertificateThatIsNotValidYetWaitsForItsBeginOrTheEndOfTheOneBefore(t *testing.T) {
	for name, tc := range map[string]struct {
		used, renewed time.Duration // until their ends; each is valid for two hours
		switches      time.Duration // 0: at once
	}{
		"valid":                                {time.Hour, 90 * time.Minute, 0},
		"begins while the other is valid":      {time.Hour, 150 * time.Minute, 30 * time.Minute},
		"begins after the end of the other":    {time.Hour, 5 * time.Hour, time.Hour},
		"the other has ended":                  {-time.Minute, 5 * time.Hour, 0},
		"the other is not valid itself either": {3 * time.Hour, 4 * time.Hour, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ca, dir, began := testca.New(t), t.TempDir(), time.Now()
				files := ca.Issue(t, dir, "relay", began.Add(tc.used))
				f, err := lastgood.Open(Renewing(files.Cert, files.Key), files.Cert, files.Key)
				if err != nil {
					t.Fatal(err)
				}
				first := f.Get().Leaf
				ca.Issue(t, dir, "relay", began.Add(tc.renewed))
				for _, err = f.Read(); err != nil; _, err = f.Read() {
					if !f.Get().Leaf.Equal(first) {
						t.Fatal("the one before is gone while the new one waits")
					}
					for _, at := range []time.Duration{tc.used, tc.renewed - 2*time.Hour} {
						if text := began.Add(at).UTC().Format(time.RFC3339); !strings.Contains(err.Error(), text) {
							t.Fatalf("the error lacks %s: %v", text, err)
						}
					}
					await.Pass(time.Second)
				}
				if after := time.Since(began); f.Get().Leaf.Equal(first) || after < tc.switches || after > tc.switches+2*time.Second {
					t.Errorf("the new one is used after %v, want %v", after, tc.switches)
				}
			})
		})
	}
}
