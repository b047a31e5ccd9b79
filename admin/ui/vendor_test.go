package ui

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestFetchedFilesEnterTheTreeOnlyWithTheirChecksum runs "make ui-vendor" in a copy of the directories with
// files of others, with an npm that has other files.
func TestFetchedFilesEnterTheTreeOnlyWithTheirChecksum(t *testing.T) {
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("make is not installed")
	}
	const ui, tests = "admin/ui/vendor", "admin/uitest/axe"
	// packages are the files that each package is to have, by their names in it.
	packages := map[string]map[string]string{
		"idiomorph": {"dist/idiomorph.min.js": ui + "/idiomorph.min.js", "LICENSE": ui + "/idiomorph.LICENSE"},
		"axe-core":  {"axe.min.js": tests + "/axe.min.js", "LICENSE": tests + "/LICENSE"},
	}
	read := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	write := func(path, text string, mode os.FileMode) {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, wrong := range []string{"", ui + "/idiomorph.min.js", ui + "/idiomorph.LICENSE", tests + "/axe.min.js", tests + "/LICENSE"} {
		t.Run("wrong "+wrong, func(t *testing.T) {
			tree, bin := t.TempDir(), t.TempDir()
			write(tree+"/Makefile", read("../../Makefile"), 0o644)
			for _, dir := range []string{ui, tests} {
				write(filepath.Join(tree, dir, "SHA256SUMS"), read("../../"+dir+"/SHA256SUMS"), 0o644)
			}
			before := map[string]string{}
			for name, files := range packages {
				for in, path := range files {
					content := read("../../" + path)
					if path == wrong {
						content += "evil()"
					}
					write(filepath.Join(bin, name, "package", in), content, 0o644)
					before[path] = "what was there " + path
					write(filepath.Join(tree, path), before[path], 0o644)
				}
			}
			// npm pack NAME@VERSION prints the name of the archive that it has fetched.
			write(bin+"/npm", fmt.Sprintf("#!/bin/bash\nset -e\nname=${3%%@*}\ntar -czf \"$name.tgz\" -C %s/\"$name\" package\necho \"$name.tgz\"\n", bin), 0o755)
			cmd := exec.Command("make", "ui-vendor")
			cmd.Dir = tree
			cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "MAKEFLAGS=", "RACE=", "VERSION=test")
			out, err := cmd.CombinedOutput()
			if (err == nil) != (wrong == "") || wrong != "" && !strings.Contains(string(out), filepath.Base(wrong)+": FAILED") {
				t.Fatalf("%v: %s", err, out)
			}
			for path, old := range before {
				want := old
				if wrong == "" {
					want = read("../../" + path)
				}
				if read(filepath.Join(tree, path)) != want {
					t.Errorf("%s is not what it is to be", path)
				}
			}
		})
	}
}
