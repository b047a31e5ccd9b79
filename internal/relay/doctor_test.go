package relay

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"meshrelay/config"
	"meshrelay/internal/doctor"
)

// A doctor that has no time for files tells how many there are; one that has reads all.
func TestDoctorTellsWhichFilesItLeavesOut(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		text := "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: " + name + "}\nspec: {hosts: [x.example]}\n"
		if err := os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "relay.yaml")
	if err := os.WriteFile(path, []byte("node: {id: n}\ndownstream: {listeners: [{address: 127.0.0.1:0, plaintext: true}]}\nadmin: {address: 127.0.0.1:0}\nupstreams:\n- {name: east, file: {path: "+dir+"}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(path, Sources()...)
	if err != nil {
		t.Fatal(err)
	}
	for files, want := range map[time.Duration]string{
		0:         "looked at 0 resources in 0s: 0 of 2 files are read to the end, and the rest is left out: relay validate reads all",
		time.Hour: "2 resources",
	} {
		d := Doctor{Config: cfg, Upstream: "east", Limit: time.Hour, Files: files, Running: func(context.Context) bool { return false }}
		var got []string
		for _, f := range d.Examine(t.Context()) {
			if f.Level != doctor.OK || f.Upstream != "east" {
				t.Errorf("finding %+v", f)
			}
			got = append(got, f.What)
		}
		if strings.Join(got, "\n") != want {
			t.Errorf("with %v: %q, want %q", files, got, want)
		}
	}
}
