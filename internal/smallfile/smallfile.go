// Package smallfile reads files of limited size. It must not know what is in them.
package smallfile

import (
	"fmt"
	"io"
	"os"
)

// Read returns the content of a file of at most most bytes. It reads one byte more of a larger file, and fails.
func Read(path string, most int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, int64(most)+1))
	switch {
	case err != nil:
		return nil, err
	case len(content) > most:
		return nil, fmt.Errorf("%s is larger than %d KiB", path, most>>10)
	}
	return content, nil
}
