package main

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// mutantFiles are the mutants: NAME.txt breaks the relay in one way. It begins with what it
// breaks. "== FILE" names a file of the root module; "-- old" and "-- new" stand before the text
// to replace, which the file has exactly once, and before its replacement.
//
//go:embed mutants/*.txt
var mutantFiles embed.FS

// mutants returns the names of all mutants, sorted.
func mutants() (names []string) {
	entries, err := mutantFiles.ReadDir("mutants")
	if err != nil {
		panic(err) // the directory is embedded
	}
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".txt"))
	}
	return names
}

// mutate returns the files that a mutant changes, by path in the root module at root, with their
// changed content.
func mutate(text, root string) (map[string]string, error) {
	changed := map[string]string{}
	_, files, _ := strings.Cut(text, "\n== ")
	for section := range strings.SplitSeq(files, "\n== ") {
		path, edits, _ := strings.Cut(section, "\n-- old\n")
		content, known := changed[path]
		if !known {
			data, err := os.ReadFile(filepath.Join(root, path))
			if err != nil {
				return nil, err
			}
			content = string(data)
		}
		for edit := range strings.SplitSeq(edits, "\n-- old\n") {
			old, replacement, found := strings.Cut(edit, "\n-- new\n")
			replacement = strings.TrimSuffix(replacement, "\n")
			if n := strings.Count(content, old); !found || n != 1 {
				return nil, fmt.Errorf("%s has this text %d times, want once:\n%s", path, n, old)
			}
			content = strings.Replace(content, old, replacement, 1)
		}
		changed[path] = content
	}
	return changed, nil
}

// machine changes Go's own library, in the same way. Its files are relative to GOROOT/src.
//
//go:embed machine.txt
var machine string

// pace has the relays of all scenarios wait less, in the same way.
//
//go:embed pace.txt
var pace string

// buildRelay builds a relay with the changes of a mutant, or without any for an empty name. With own, the relay has a
// clock and names of its own: see machine.txt.
func buildRelay(ctx context.Context, name, dir string, own bool) (binary string, err error) {
	binary = filepath.Join(dir, "relay"+name)
	overlay, err := writeOverlay(ctx, name, dir, own)
	if err != nil {
		return "", fmt.Errorf("mutant %q: %w", name, err)
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", binary, "-overlay", overlay, "./cmd/relay")
	cmd.Dir, cmd.Env = "..", append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the relay in the directory above: %w: %s", err, text)
	}
	return binary, nil
}

// writeOverlay writes the files to dir that a mutant, if it has a name, and pace.txt change, and with own those of
// machine.txt. It returns the path of the overlay for go build.
func writeOverlay(ctx context.Context, name, dir string, own bool) (string, error) {
	var overlay struct{ Replace map[string]string }
	overlay.Replace = map[string]string{}
	add := func(prefix, text, root string) error {
		changed, err := mutate(text, root)
		for path, content := range changed {
			file := filepath.Join(dir, prefix+"-"+strings.ReplaceAll(path, "/", "-"))
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				return err
			}
			overlay.Replace[filepath.Join(root, path)] = file
		}
		return err
	}
	edits := pace
	if name != "" {
		if !slices.Contains(mutants(), name) {
			return "", fmt.Errorf("there is none: want one of %s", strings.Join(mutants(), ", "))
		}
		text, err := mutantFiles.ReadFile("mutants/" + name + ".txt")
		if err != nil {
			return "", err
		}
		_, paced, _ := strings.Cut(pace, "\n== ")
		edits = string(text) + "\n== " + paced
	}
	root, err := filepath.Abs("..")
	if err != nil {
		return "", err
	}
	if err := add(name, edits, root); err != nil {
		return "", err
	}
	if own {
		root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
		if err != nil {
			return "", err
		}
		if err := add("machine", machine, filepath.Join(strings.TrimSpace(string(root)), "src")); err != nil {
			return "", err
		}
	}
	data, err := json.Marshal(overlay)
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, name+"-overlay.json")
	return file, os.WriteFile(file, data, 0o600)
}
