package stateio

import (
	"time"

	"meshrelay/state"
)

// Inspection describes a state, without its resources.
type Inspection struct {
	Path      string              `json:"path"`
	Format    int                 `json:"format"`
	Size      int64               `json:"size"` // bytes
	Damage    string              `json:"damage,omitempty"`
	Upstreams []InspectedUpstream `json:"upstreams"`
}

// InspectedUpstream is one upstream in an Inspection.
type InspectedUpstream struct {
	Name      string         `json:"name"`
	Resources int            `json:"resources"`
	Kinds     map[string]int `json:"kinds"`
	Bytes     int64          `json:"bytes"`
	Synced    bool           `json:"synced"`
	// LastContact is when the upstream was last in contact. With InContact, it was in contact later, too,
	// but the state has no later time.
	LastContact time.Time        `json:"lastContact,omitzero"`
	InContact   bool             `json:"inContact,omitempty"`
	Frozen      *state.Frozen    `json:"frozen,omitempty"`
	Revisions   []state.Revision `json:"revisions"`
}

// Inspect describes one upstream of a state, or all if upstream is empty.
func Inspect(file *state.File, upstream string) (Inspection, error) {
	out := Inspection{Path: file.Path, Format: file.Format, Size: file.Size, Damage: file.Damage, Upstreams: []InspectedUpstream{}}
	for _, s := range file.Sources {
		if upstream != "" && s.Name != upstream {
			continue
		}
		u := InspectedUpstream{
			Name: s.Name, Resources: len(s.Records), Kinds: map[string]int{}, Bytes: s.Bytes, Synced: s.Meta.Synced,
			LastContact: s.Meta.LastContact, InContact: s.Meta.InContact, Frozen: s.Meta.Frozen, Revisions: s.Revisions,
		}
		for i := range s.Records {
			u.Kinds[s.Records[i].Resource.Kind().String()]++
		}
		out.Upstreams = append(out.Upstreams, u)
	}
	if upstream != "" && len(out.Upstreams) == 0 {
		return out, NoUpstream(file, upstream)
	}
	return out, nil
}
