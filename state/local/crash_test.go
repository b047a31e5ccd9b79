package local

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/state"
)

// player prepares a process that plays a role.
func player(t testing.TB, role, dir string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "STATE_TEST_ROLE="+role, "STATE_TEST_DIR="+dir)
	return cmd
}

// Set RELAY_KILLS for more of them.
func TestAKilledWriterLosesAtMostWhatWasNotDurable(t *testing.T) {
	t.Parallel() // it waits for the disk
	kills := 50
	if testing.Short() {
		kills = 5
	}
	if s := os.Getenv("RELAY_KILLS"); s != "" {
		var err error
		if kills, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	random := rand.New(rand.NewPCG(1, 2))
	var durable uint64
	for kill := range kills {
		cmd := player(t, "write", dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		until := random.IntN(8)
		for n := 0; lines.Scan(); n++ {
			if durable, err = strconv.ParseUint(lines.Text(), 10, 64); err != nil {
				t.Fatalf("kill %d: %q", kill, lines.Text())
			}
			if n == until {
				// At any moment of what comes next, which takes some milliseconds.
				time.AfterFunc(time.Duration(random.IntN(4000))*time.Microsecond, func() { _ = cmd.Process.Kill() })
			}
		}
		if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatalf("kill %d: the writer has ended by itself: %v", kill, err)
		}

		k := openState(dir)
		s, st := k.Load("east"), k.Status()
		if !st.Healthy || len(st.SetAside) > 0 {
			t.Fatalf("kill %d: status %+v", kill, st)
		}
		if s.Revision != durable && s.Revision != durable+1 {
			t.Fatalf("kill %d: revision %d is kept, and %d was durable", kill, s.Revision, durable)
		}
		same(t, fmt.Sprintf("kill %d: revision %d", kill, s.Revision), hostsOf(t, s.Records), generation(s.Revision))
		if kill%10 == 0 {
			checkGenerations(t, k)
		}
		end(k)
		durable = s.Revision
	}
	t.Logf("%d kills, %d generations", kills, durable)
}

func checkGenerations(t *testing.T, k *state.Keeper) {
	t.Helper()
	history, err := k.History("east")
	if err != nil || len(history) == 0 {
		t.Fatalf("history %v, %v", history, err)
	}
	for _, r := range history {
		records, err := k.At("east", r.ID)
		if err != nil {
			t.Fatal(err)
		}
		same(t, fmt.Sprint("revision ", r.ID), hostsOf(t, records), generation(r.ID))
	}
}

func TestAFullDiskIsReportedAndGotOver(t *testing.T) {
	if out, err := player(t, "full", t.TempDir()).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func TestAStateInUseIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the wait for the lock
		dir := t.TempDir()
		holder := open(t, dir)
		began := time.Now()
		k := openState(dir)
		defer func() { end(k) }()
		if waited := time.Since(began); waited < lockPatience {
			t.Errorf("it waited for %v", waited)
		}
		if st := k.Status(); st.InUse || st.Healthy || !strings.Contains(st.LastError, state.ErrInUse.Error()) {
			t.Errorf("status %+v", st)
		}
		if s := k.Load("east"); len(s.Records) > 0 {
			t.Error("something is loaded")
		}
		f := newFake()
		f.put(record("db", "1"))
		k.Follow("east", f)
		if err := k.Flush(t.Context()); err == nil {
			t.Error("flushed into another process's state")
		}
		if _, err := ReadFile(Path(dir)); err == nil {
			t.Error("read while it is in use")
		}
		end(holder)
		flush(t, k)
		if st := k.Status(); !st.Healthy {
			t.Errorf("status %+v", st)
		}
		same(t, "loaded", hostsOf(t, k.Load("east").Records), map[string]string{"db": "1"})
	})
}
