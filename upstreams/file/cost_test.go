package file

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/internal/testing/await"
	"meshrelay/upstreams/intake/records"

	"golang.org/x/sync/semaphore"
)

func TestADocumentThatIsTooLargeLeavesOtherFilesAlone(t *testing.T) {
	dir := t.TempDir()
	good := "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: %s, namespace: shop}\nspec: {hosts: [a.example], ports: [{number: 1, name: a}], resolution: NONE}\n"
	for name, text := range map[string]string{
		"good.yaml":  fmt.Sprintf(good, "good"),
		"lines.yaml": fmt.Sprintf(good, "beside") + "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata:\n  name: x\n  labels:\n" + numberedLines(200_000),
		"flow.yaml":  "spec: [" + strings.Repeat("1,", 1<<20) + "1]\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var found int
	var problems []records.Refusal
	cost := allocatedBy(func() {
		resources, refused, err := Read(dir, "local", false)
		if err != nil {
			t.Fatal(err)
		}
		found, problems = len(resources), refused
	})
	if found != 2 || len(problems) != 2 || !slices.ContainsFunc(problems, func(p records.Refusal) bool { return strings.Contains(p.Resource, "lines.yaml:5") }) {
		t.Errorf("%d resources, refused %v", found, problems)
	}
	if cost > 64<<20 {
		t.Errorf("%d MB were allocated", cost>>20)
	}
}

// allocatedBy returns what f allocates, in bytes.
func allocatedBy(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// A file of any size up to the limit leaves a bounded multiple of its size in memory.
func TestWhatAFileLeavesInMemoryIsBounded(t *testing.T) {
	var b bytes.Buffer
	const size = 1 << 20
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, "---\napiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: a%d}\n", i)
	}
	path := filepath.Join(t.TempDir(), "a.yaml")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newScanner("local")
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	if err := s.scan(path); err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	left := after.HeapAlloc - before.HeapAlloc
	t.Logf("%d documents of %d bytes leave %d bytes", len(s.files[path].good), b.Len(), left)
	if most := uint64(250 << 20); left*(maxFileBytes/size) > most {
		t.Errorf("a file of %d MiB leaves %d MB", maxFileBytes>>20, left*(maxFileBytes/size)>>20)
	}
	runtime.KeepAlive(s)
}

// TestLargeFilesAreReadInTurn: those of all sources, while small ones need not wait.
func TestLargeFilesAreReadInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		for i := range 6 {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("large-%d.yaml", i)), bytes.Repeat([]byte("# nothing\n"), maxFileBytes/10), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "small.yaml"), []byte("# nothing\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		turn := semaphore.NewWeighted(maxReading)
		var now, done atomic.Int32
		end := make(chan struct{})
		for i := range 7 {
			s := newScanner("local")
			s.turn = turn
			s.read = func(found *listing, path string) ([]byte, time.Time, error) {
				now.Add(1)
				<-end
				now.Add(-1)
				done.Add(1)
				return nil, time.Time{}, nil
			}
			name := fmt.Sprintf("large-%d.yaml", i)
			if i == 6 {
				name = "small.yaml"
			}
			go func() { _, _, _ = s.readFile(&listing{}, filepath.Join(dir, name)) }()
		}
		synctest.Wait()
		if n := now.Load(); n != 3 {
			t.Errorf("%d files are read at the same time, want two large ones and the small one", n)
		}
		await.Settle(turnWait)
		if n := now.Load(); n != 7 {
			t.Errorf("%d files are read while the first ones hang, want all", n)
		}
		close(end)
		synctest.Wait()
		if n := done.Load(); n != 7 {
			t.Errorf("%d files were read", n)
		}
	})
}
