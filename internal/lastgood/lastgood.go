// Package lastgood keeps what was read last without an error. It must not know what is read.
package lastgood

import (
	"crypto/sha256"
	"sync"
	"sync/atomic"

	"meshrelay/internal/smallfile"
)

// maxBytes bounds a file, as package certfile does.
const maxBytes = 4 << 20

// File is the value of one or more files. While the files are bad, the last good value stays. Any goroutine may
// call its methods.
type File[T any] struct {
	paths []string
	parse func() (T, error)
	good  atomic.Pointer[T]

	mu  sync.Mutex        // guards sum
	sum [sha256.Size]byte // of the files of the value
}

// Open reads files for the first time. parse reads them again, and makes their value.
func Open[T any](parse func() (T, error), paths ...string) (*File[T], error) {
	f := &File[T]{paths: paths, parse: parse}
	if _, err := f.Read(); err != nil {
		return nil, err
	}
	return f, nil
}

// Get returns the last good value.
func (f *File[T]) Get() T { return *f.good.Load() }

// Read reads the files, and reports whether there is a new value. After an error, the value is that of before.
func (f *File[T]) Read() (changed bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := sha256.New()
	for _, path := range f.paths {
		text, err := smallfile.Read(path, maxBytes)
		if err != nil {
			return false, err
		}
		one := sha256.Sum256(text)
		h.Write(one[:])
	}
	sum := [sha256.Size]byte(h.Sum(nil))
	if f.good.Load() != nil && sum == f.sum {
		return false, nil
	}
	value, err := f.parse()
	if err != nil {
		return false, err
	}
	f.sum = sum
	f.good.Store(&value)
	return true, nil
}
