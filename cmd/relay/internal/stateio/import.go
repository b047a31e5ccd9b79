package stateio

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"meshrelay/config"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/state/local"
	"meshrelay/upstreams/file"
)

// Import replaces the content of an upstream in a state by YAML.
type Import struct {
	// Dir is the directory of the state.
	Dir      string
	Upstream string
	// Path is a file or directory of YAML.
	Path string
	// Held is set when the YAML is an export, to which import and rewrite rules were applied.
	Held bool
	// Config may be nil. ConfigPath is its path.
	Config     *config.Config
	ConfigPath string
}

// Run imports the YAML. It returns the numbers of written and of replaced resources.
func (i Import) Run() (written, replaced int, err error) {
	history := state.History{Revisions: keepAllRevisions}
	if cfg := i.Config; cfg != nil {
		if configured(cfg, i.Upstream) == nil {
			return 0, 0, fmt.Errorf("%s has no upstream %q", i.ConfigPath, i.Upstream)
		}
		h := cfg.State.History
		history = state.History{Revisions: h.Revisions, MaxAge: h.MaxAge.D(), MaxBytes: h.MaxBytes}
	}
	before, err := i.before()
	if err != nil {
		return 0, 0, err
	}
	if i.Held && before.Name == "" {
		return 0, 0, fmt.Errorf("%s has no upstream %q, so its rules are unknown: import without --held", local.Path(i.Dir), i.Upstream)
	}
	records, err := readRecords(i.Path, i.Upstream, i.stamp(before))
	if err != nil {
		return 0, 0, err
	}
	s := state.Saved{Meta: state.Meta{Synced: true, LastContact: time.Now(), By: "import", Frozen: before.Meta.Frozen}, Records: records}
	if i.Held {
		s.Meta.Fingerprint = before.Meta.Fingerprint
	}
	return len(records), len(before.Records), endFirst(local.Replace(i.Dir, history, i.Upstream, s))
}

// endFirst adds advice to the error of a state that is in use.
func endFirst(err error) error {
	if errors.Is(err, state.ErrInUse) {
		return fmt.Errorf("%w: end the relay first", err)
	}
	return err
}

// keepAllRevisions makes the import keep all revisions. The relay prunes them later.
const keepAllRevisions = 1 << 20

// before returns the current content of the upstream, or empty Contents.
func (i Import) before() (*state.Contents, error) {
	file, err := local.ReadFile(local.Path(i.Dir))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &state.Contents{}, nil
	case err != nil:
		return nil, endFirst(err)
	case file.Damage != "":
		return nil, Damage(file)
	}
	return cmp.Or(find(file, i.Upstream), &state.Contents{}), nil
}

// stamp returns the stamp that the relay puts on the resources of the upstream, from the config or, without one,
// from the current content.
func (i Import) stamp(before *state.Contents) *mirror.Stamp {
	of := mirror.Stamp{Source: i.Upstream, Believe: true, Begin: true}
	if i.Config == nil {
		of.Cluster, of.Relay = origin(before.Records)
		of.Cluster = cmp.Or(of.Cluster, i.Upstream)
		return &of
	}
	of.Cluster = configured(i.Config, i.Upstream).ClusterID
	if i.Config.Provenance.Annotations.Given() {
		of.Relay = i.Config.Provenance.Relay
	}
	return &of
}

// readRecords reads YAML as a file upstream does.
func readRecords(path, upstream string, stamp *mirror.Stamp) ([]state.Record, error) {
	found, refused, err := file.Read(path, upstream, false)
	if err != nil {
		return nil, err
	}
	if len(refused) > 0 {
		var all []error
		for _, p := range refused {
			all = append(all, fmt.Errorf("%s: %s", p.Resource, p.Reason))
		}
		return nil, errors.Join(append(all, errors.New("nothing was imported"))...)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("nothing was imported: %s has no resources", path)
	}
	records := make([]state.Record, 0, len(found))
	for _, r := range found {
		r = r.Stamped(stamp)
		records = append(records, state.Record{Resource: r, TypeURL: r.Kind().PreferredTypeURL(), At: time.Now().Truncate(time.Second)})
	}
	return records, nil
}
