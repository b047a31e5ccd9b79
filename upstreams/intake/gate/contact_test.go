package gate

import (
	"testing"
	"time"

	"meshrelay/config"
	"meshrelay/mirror"
)

type nobody struct{}

func (nobody) Dropped(mirror.Key, *mirror.Resource) {}
func (nobody) Keeps(mirror.Key)                     {}
func (nobody) Told(Happening)                       {}

// TestAReloadBringsBackAKindThatWasToldAfterTheLastContact: it is fresher than the rest.
func TestAReloadBringsBackAKindThatWasToldAfterTheLastContact(t *testing.T) {
	kind, start := mirror.Kind{Group: "a", Kind: "B"}, time.Unix(1_000_000, 0)
	s := Settings{Staleness: config.Staleness{ExpireAfter: config.OpenEnded(time.Hour)}}
	g := New(mirror.NewStore(), s, nobody{})
	at := func(minutes int) { g.SetNow(start.Add(time.Duration(minutes) * time.Minute)) }
	at(0)
	g.RestoreContact(start, false)
	at(30)
	g.Freshen(kind)
	at(31)
	g.Lose()
	at(100)
	if !g.Withholds(kind) {
		t.Fatal("it has not expired")
	}
	s.Staleness.ExpireAfter = config.OpenEnded(80 * time.Minute)
	if !g.Set(s) || g.Withholds(kind) {
		t.Error("it stays away, although it has not expired by the new rule")
	}
	if g.Set(s) {
		t.Error("the same rule brings something back")
	}
}
