package main

import (
	"context"
	"io"
	"path/filepath"
	"slices"

	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	"github.com/goreleaser/nfpm/v2/rpm"
)

const summary = "Relay and federation proxy for Istio configuration"

// packages writes a deb and an rpm for each platform of Linux.
func (d *dist) packages(context.Context) error {
	version, err := packageVersion(d.version)
	if err != nil {
		return err
	}
	for _, p := range linux() {
		for name, packager := range map[string]nfpm.Packager{"deb": deb.Default, "rpm": rpm.DefaultRPM} {
			contents, err := d.contents(p, name)
			if err != nil {
				return err
			}
			scripts := filepath.Join(d.root, "deploy", "packages")
			info := nfpm.WithDefaults(&nfpm.Info{
				Name: "relay", Arch: p.arch, Platform: p.os, Version: version, VersionSchema: "none", Release: "1",
				Section: "net", Maintainer: d.maintainer, License: "Apache-2.0", MTime: d.date, DisableGlobbing: true,
				Description: summary + "\nrelay mirrors the resources of several istiods, merges them, and serves the result over xDS.",
				Overridables: nfpm.Overridables{
					Contents: contents,
					Scripts: nfpm.Scripts{
						PostInstall: filepath.Join(scripts, "postinstall.sh"),
						PreRemove:   filepath.Join(scripts, "preremove.sh"),
						PostRemove:  filepath.Join(scripts, "postremove.sh"),
					},
					// A host without these roots needs xds.tls.caFile.
					Recommends: []string{"ca-certificates"},
					RPM:        nfpm.RPM{BuildHost: "localhost", Group: "Unspecified"},
				},
			})
			if err := d.artefact(packager.ConventionalFileName(info), func(w io.Writer) error { return packager.Package(info, w) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// contents lists the files of a deb or an rpm.
func (d *dist) contents(p platform, packager string) (files.Contents, error) {
	var out files.Contents
	add := func(destination, source string, mode int64, kind string) {
		info := files.ContentFileInfo{Mode: 0o644, MTime: d.date}
		if mode != 0 {
			info.Mode = 0o755
		}
		out = append(out, &files.Content{Destination: destination, Source: source, Type: kind, FileInfo: &info})
	}
	deploy := filepath.Join(d.root, "deploy")
	zsh, licence := "vendor-completions", "/usr/share/doc/relay/copyright"
	if packager == "rpm" {
		zsh, licence = "site-functions", "/usr/share/licenses/relay/LICENSE"
	}
	add("/usr/bin/relay", d.binary(p), 0o755, files.TypeFile)
	add("/etc/relay/relay.yaml", filepath.Join(deploy, "packages", "relay.yaml"), 0, files.TypeConfigNoReplace)
	// rpm removes the directories that a package lists.
	for _, dir := range []string{"/etc/relay", "/etc/relay/resources", "/usr/share/doc/relay", "/usr/share/relay", filepath.Dir(licence)} {
		if !slices.ContainsFunc(out, func(c *files.Content) bool { return c.Destination == dir }) {
			add(dir, "", 0o755, files.TypeDir)
		}
	}
	add("/usr/lib/systemd/system/relay.service", filepath.Join(deploy, "systemd", "relay.service"), 0, files.TypeFile)
	add("/usr/lib/sysusers.d/relay.conf", filepath.Join(deploy, "packages", "sysusers.conf"), 0, files.TypeFile)
	add("/usr/share/bash-completion/completions/relay", filepath.Join(d.work, "completions", "relay.bash"), 0, files.TypeFile)
	add("/usr/share/zsh/"+zsh+"/_relay", filepath.Join(d.work, "completions", "_relay"), 0, files.TypeFile)
	add("/usr/share/fish/vendor_completions.d/relay.fish", filepath.Join(d.work, "completions", "relay.fish"), 0, files.TypeFile)
	add("/usr/share/relay/relay.schema.json", filepath.Join(d.work, "relay.schema.json"), 0, files.TypeFile)
	add(licence, filepath.Join(d.root, "LICENSE"), 0, files.TypeFile)
	add("/usr/share/doc/relay/NOTICES", filepath.Join(d.work, "NOTICES"), 0, files.TypeFile)
	add("/usr/share/doc/relay/README.md", filepath.Join(d.root, "README.md"), 0, files.TypeFile)
	add("/usr/share/doc/relay/CHANGELOG.md", filepath.Join(d.root, "CHANGELOG.md"), 0, files.TypeFile)
	pages, err := tree(filepath.Join(d.work, "man.gz"), "")
	for _, page := range pages {
		add("/usr/share/man/man1/"+page.path, page.source, 0, files.TypeFile)
	}
	return out, err
}
