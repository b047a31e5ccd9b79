package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// fromVCS sets version, revision and date from git, as far as -version and SOURCE_DATE_EPOCH do not. A
// tree without git needs both.
func (d *dist) fromVCS(ctx context.Context) (err error) {
	if d.version == "" {
		if d.version, err = command(ctx, d.root, nil, "git", "describe", "--tags", "--always", "--dirty"); err != nil {
			return fmt.Errorf("no version from git: use -version: %w", err)
		}
	}
	d.version = semantic(d.version)
	d.revision, _ = command(ctx, d.root, nil, "git", "rev-parse", "HEAD") // a source archive has none
	if changed, err := command(ctx, d.root, nil, "git", "status", "--porcelain"); err == nil && changed != "" {
		d.revision += "-dirty" // whatever -version is: files that are not committed may be in the artefacts
	}
	epoch := os.Getenv("SOURCE_DATE_EPOCH")
	if epoch == "" {
		if epoch, err = command(ctx, d.root, nil, "git", "log", "-1", "--format=%ct"); err != nil {
			return fmt.Errorf("no time from git: set SOURCE_DATE_EPOCH: %w", err)
		}
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH %q: set it to seconds since 1970: %w", epoch, err)
	}
	d.date = time.Unix(seconds, 0).UTC()
	return nil
}

// semantic makes a semantic version of what git describes. Helm takes no other, and image, chart and binary
// have the same. Before the first tag, git gives the commit alone.
func semantic(described string) string {
	if commit := regexp.MustCompile(`^[0-9a-f]{7,40}(-dirty)?$`); commit.MatchString(described) {
		return "v0.0.0-g" + described
	}
	return "v" + strings.TrimPrefix(described, "v")
}

var describedVersion = regexp.MustCompile(`^v(\d+\.\d+\.\d+)(?:-(.+?))??(?:-(\d+)-(g[0-9a-f]+))?(-dirty)?$`)

// packageVersion makes of a semantic version one that dpkg and rpm sort: v0.2.0-rc.1 before v0.2.0, and
// v0.2.0-3-gabcdef0, three commits later, behind it.
func packageVersion(version string) (string, error) {
	m := describedVersion.FindStringSubmatch(version)
	if m == nil {
		return "", fmt.Errorf("version %q: use one such as v0.2.0 or v0.2.0-rc.1", version)
	}
	out := m[1]
	if m[2] != "" {
		out += "~" + strings.ReplaceAll(m[2], "-", ".")
	}
	if m[3] != "" {
		out += "+" + m[3] + "." + m[4]
	}
	if m[5] != "" {
		out += "+dirty"
	}
	if !regexp.MustCompile(`^[0-9A-Za-z.+~]+$`).MatchString(out) {
		return "", fmt.Errorf("version %q: packages take letters, digits, dots and hyphens", version)
	}
	return out, nil
}
