package owner

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
)

// ReadJSON decodes a file of at most limit bytes, which nobody else can write.
func ReadJSON(path string, limit int64, into any) error {
	f, info, err := Open(path, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s: %w", path, ErrOthers)
	}
	if err := json.NewDecoder(io.LimitReader(f, limit)).Decode(into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// ReplaceJSON is Replace with an encoded value.
func ReplaceJSON(path string, v any) error {
	return Replace(path, func(f *os.File) error { return json.NewEncoder(f).Encode(v) })
}
