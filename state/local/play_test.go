package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
)

// play is what a process does that a test has started for its own ends.
func play(role string) int {
	var err error
	switch dir := os.Getenv("STATE_TEST_DIR"); role {
	case "write":
		err = playWriter(dir)
	case "full":
		err = playFullDisk(dir)
	case "fulljournal":
		err = playFullJournal(dir)
	case "readonly":
		err = playReadOnly(dir)
	case "stranger":
		err = playStranger(dir)
	default:
		err = fmt.Errorf("no role %q", role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// generation is the content that playWriter gives a source in one flush, so that revision
// and generation are the same number.
func generation(n uint64) map[string]string {
	out := map[string]string{"generation": strconv.FormatUint(n, 10)}
	for i := range n * 7 % 23 {
		out[fmt.Sprint("r", i)] = strconv.FormatUint(n-i%3, 10)
	}
	return out
}

// playWriter writes generation after generation until it is killed, and reports each when it is
// durable.
func playWriter(dir string) error {
	k := openState(dir)
	f := restoredFake(k.Load("east"))
	k.Follow("east", f)
	n, _ := strconv.ParseUint(f.hosts()["generation"], 10, 64)
	for {
		n++
		next := generation(n)
		for name := range f.hosts() {
			if next[name] == "" {
				f.remove(name)
			}
		}
		for name, host := range next {
			f.put(record(name, host))
		}
		if err := k.Flush(context.Background()); err != nil {
			return err
		}
		fmt.Println(n)
	}
}

// playFullDisk has the disk full for a while.
func playFullDisk(dir string) error {
	signal.Ignore(syscall.SIGXFSZ) // so that writing beyond the limit is an error
	k := openState(dir)
	f := newFake()
	k.Follow("east", f)
	f.put(record("db", "1"))
	if err := k.Flush(context.Background()); err != nil {
		return err
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	before := limit.Cur
	limit.Cur = uint64(k.Status().Size)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	for i := range 2000 {
		f.put(record(fmt.Sprint("r", i), "1"))
	}
	for attempt := range 3 {
		err := k.Flush(context.Background())
		st := k.Status()
		if err == nil || st.Healthy || st.LastError == "" || st.ErrorSince.IsZero() || !st.InUse {
			return fmt.Errorf("attempt %d with the disk full: error %w, status %+v", attempt, err, st)
		}
		if f.gives != attempt+1 {
			return fmt.Errorf("changes were given back %d times after %d attempts", f.gives, attempt+1)
		}
		if s := k.Load("east"); len(s.Records) != 1 || s.Revision != 1 {
			return fmt.Errorf("with the disk full, there are %d records of revision %d", len(s.Records), s.Revision)
		}
	}
	limit.Cur = before
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	if err := k.Flush(context.Background()); err != nil {
		return err
	}
	if st := k.Status(); !st.Healthy || st.LastError != "" {
		return fmt.Errorf("with room again: status %+v", st)
	}
	end(k)
	if k = openState(dir); len(k.Load("east").Records) != 2001 || len(k.Status().SetAside) > 0 {
		return fmt.Errorf("after a restart, there are %d records, status %+v", len(k.Load("east").Records), k.Status())
	}
	return nil
}

// playFullJournal appends a line for which the disk has no room. The limit holds for the whole process, and a
// process of tests writes files of its own.
func playFullJournal(dir string) error {
	signal.Ignore(syscall.SIGXFSZ) // so that writing beyond the limit is an error
	s := New(dir, nil)
	if _, err := s.Open(); err != nil {
		return err
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 100, Max: 100}); err != nil {
		return err
	}
	if err := s.AppendJournal(append(bytes.Repeat([]byte("b"), 200), '\n')); err == nil {
		return errors.New("appended to a full disk")
	}
	return s.Close()
}

// playReadOnly finds a state that it may read and not write, and then may.
func playReadOnly(dir string) error {
	chmod := func(dirMode, fileMode os.FileMode) error {
		return errors.Join(os.Chmod(dir, dirMode), os.Chmod(Path(dir), fileMode), os.Chmod(filepath.Join(dir, logName("east")), fileMode), os.Chmod(filepath.Join(dir, lockName), fileMode))
	}
	const nobody = 65534
	if os.Getuid() == 0 { // whom no mode keeps out
		if err := errors.Join(os.Chown(dir, nobody, -1), os.Chown(Path(dir), nobody, -1), os.Chown(filepath.Join(dir, logName("east")), nobody, -1), os.Chown(filepath.Join(dir, lockName), nobody, -1),
			os.Chmod(filepath.Dir(dir), 0o755), syscall.Setuid(nobody)); err != nil {
			return err
		}
	}
	if err := chmod(0o500, 0o400); err != nil {
		return err
	}
	k := openState(dir)
	s, st := k.Load("east"), k.Status()
	if len(s.Records) != 1 || st.Healthy || st.InUse || st.LastError == "" {
		return fmt.Errorf("%d records, status %+v", len(s.Records), st)
	}
	f := restoredFake(s)
	k.Follow("east", f)
	f.put(record("db", "2"))
	if err := k.Flush(context.Background()); err == nil {
		return errors.New("flushed into what is read-only")
	}
	if err := chmod(0o700, 0o600); err != nil {
		return err
	}
	if err := k.Flush(context.Background()); err != nil {
		return err
	}
	end(k)
	return nil
}
