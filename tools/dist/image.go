package main

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"path/filepath"
	"time"

	ociv1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user is the number of the user and of the group relay in the image. The manifests in deploy have the same.
const user = 65532

// image writes an image for all platforms of Linux, as an archive of an OCI layout. It has the relay, the roots
// of public certificates and the user relay, and no shell.
func (d *dist) image(context.Context) error {
	if err := d.stageRoot(); err != nil {
		return err
	}
	var index ociv1.ImageIndex = empty.Index
	for _, p := range linux() {
		image, err := d.platformImage(p)
		if err != nil {
			return fmt.Errorf("image for %s: %w", p, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: image, Descriptor: ociv1.Descriptor{Platform: &ociv1.Platform{OS: p.os, Architecture: p.arch}},
		})
	}
	dir := filepath.Join(d.work, "layout")
	written, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	// By the first name skopeo finds the image in the archive, by the second containerd and Docker name it.
	if err := written.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": d.version, "io.containerd.image.name": "docker.io/library/relay:" + d.version,
	})); err != nil {
		return err
	}
	files, err := tree(dir, "")
	if err != nil {
		return err
	}
	return d.artefact("relay-"+d.version+"-image.tar", func(w io.Writer) error { return writeTar(w, d.date, files) })
}

// stageRoot writes the files of the image that are made here.
func (d *dist) stageRoot() error {
	var roots bytes.Buffer
	for root := range bundle.Roots() {
		// A file can not carry the constraint of a root that is trusted for a part of its certificates.
		if root.Constraint == nil {
			if err := pem.Encode(&roots, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
				return err
			}
		}
	}
	for name, content := range map[string]string{
		"root/ca-certificates.crt": roots.String(),
		"root/passwd":              fmt.Sprintf("root:x:0:0::/:/sbin/nologin\nrelay:x:%d:%[1]d::/var/lib/relay:/sbin/nologin\n", user),
		"root/group":               fmt.Sprintf("root:x:0:\nrelay:x:%d:\n", user),
	} {
		if err := d.stage(name, []byte(content)); err != nil {
			return err
		}
	}
	return nil
}

func (d *dist) platformImage(p platform) (ociv1.Image, error) {
	root := filepath.Join(d.work, "root")
	var layers []ociv1.Layer
	for _, files := range [][]file{
		{
			{path: "etc/passwd", source: filepath.Join(root, "passwd")},
			{path: "etc/group", source: filepath.Join(root, "group")},
			{path: "etc/relay/"},
			{path: "etc/ssl/certs/ca-certificates.crt", source: filepath.Join(root, "ca-certificates.crt")},
			{path: "tmp/", mode: 0o1777},
			{path: "usr/share/doc/relay/LICENSE", source: filepath.Join(d.root, "LICENSE")},
			{path: "usr/share/doc/relay/NOTICES", source: filepath.Join(d.work, "NOTICES")},
			{path: "var/lib/relay/", mode: 0o700, owner: user},
		},
		// Where "kubectl exec POD -- relay status" finds it.
		{{path: "usr/bin/relay", source: d.binary(p), mode: 0o755}},
	} {
		var content bytes.Buffer
		if err := writeTar(&content, d.date, files); err != nil {
			return nil, err
		}
		layer, err := tarball.LayerFromOpener(
			func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil },
			tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
		if err != nil {
			return nil, err
		}
		layers = append(layers, layer)
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.AppendLayers(image, layers...)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = p.os, p.arch, ociv1.Time{Time: d.date}
	config.History = nil
	config.Config = ociv1.Config{
		User:       fmt.Sprintf("%d:%[1]d", user),
		Env:        []string{"PATH=/usr/bin"},
		Entrypoint: []string{"relay"},
		Cmd:        []string{"serve", "-c", "/etc/relay/relay.yaml"},
		Labels: map[string]string{
			"org.opencontainers.image.title":       "relay",
			"org.opencontainers.image.description": summary,
			"org.opencontainers.image.version":     d.version,
			"org.opencontainers.image.revision":    d.revision,
			"org.opencontainers.image.created":     d.date.Format(time.RFC3339),
			"org.opencontainers.image.licenses":    "Apache-2.0",
		},
	}
	return mutate.ConfigFile(image, config)
}
