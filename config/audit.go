package config

import (
	"fmt"
	"reflect"
	"runtime"
	"slices"
)

// Audit configures the audit log: a File, or the standard output. Without both, there is none.
type Audit struct {
	File   string `yaml:"file" path:"own"`
	Stdout bool   `yaml:"stdout"`
	// A new file begins before one has more than MaxBytes. There are at most MaxFiles.
	MaxBytes int `yaml:"maxBytes" default:"100Mi" range:"1Mi 1024Gi"`
	MaxFiles int `yaml:"maxFiles" default:"10" range:"2 1000"`
	// Required refuses the actions of operators while the log can not be written.
	Required bool `yaml:"required"`
}

// Access lists users and groups of the relay's host by number.
type Access struct {
	UIDs []int `yaml:"uids,omitempty"`
	GIDs []int `yaml:"gids,omitempty"`
}

// IsEmpty reports whether the list has nobody.
func (a Access) IsEmpty() bool { return len(a.UIDs)+len(a.GIDs) == 0 }

// maxUID is the largest number of a user or a group. Linux uses the next one for "no change".
// unseen is the number that it gives to users and groups outside of the user namespace of a process.
const maxUID, unseen = 1<<32 - 2, 65534

func (v *validator) audit(c *Config) {
	const none = "there is no audit log: set audit.file, or audit.stdout: true"
	a := c.Audit
	v.errorIf(a.File != "" && a.Stdout, "audit.stdout", "audit.file is set, too: choose one of them")
	v.errorIf(a.File != "" && absolute(a.File) == c.AdminSocket(), "audit.file", "%s is the admin socket: choose another path", a.File)
	v.errorIf(a.Required && a.File == "" && !a.Stdout, "audit.required", none)
	var unset Audit
	setDefaults(reflect.ValueOf(&unset).Elem())
	for field, set := range map[string]bool{"audit.maxBytes": a.MaxBytes != unset.MaxBytes, "audit.maxFiles": a.MaxFiles != unset.MaxFiles} {
		v.errorIf(set && a.File == "", field, "only with audit.file: the relay does not bound what others keep of its standard output")
	}
}

// access checks who may use the admin socket. One group must be able to open it.
func (v *validator) access(a Admin) {
	const readers = "admin.readers"
	for _, list := range []struct {
		field string
		of    Access
	}{{readers, a.Readers}, {"admin.operators", a.Operators}} {
		if list.of.IsEmpty() {
			v.errorIf(v.noted(list.field), list.field, "nobody is in it: name uids or gids, or leave it out")
			continue
		}
		v.errorIf(runtime.GOOS != "linux", list.field, "only on Linux: %s does not tell the groups of who uses the socket", runtime.GOOS)
		for name, of := range map[string]struct{ ids, operators []int }{"uids": {list.of.UIDs, a.Operators.UIDs}, "gids": {list.of.GIDs, a.Operators.GIDs}} {
			for i, id := range of.ids {
				field := fmt.Sprintf("%s.%s[%d]", list.field, name, i)
				v.errorIf(id < 0 || id > maxUID, field, "%d is out of range: 0 to %d", id, maxUID)
				v.errorIf(id == unseen, field, "%d stands for all users or groups that the relay can not see: name others", id)
				v.errorIf(slices.Contains(of.ids[:i], id), field, "%d is in the list already", id)
				v.errorIf(list.field == readers && slices.Contains(of.operators, id), field, "%d is in admin.operators.%s, too, and operators may read: leave it out here", id, name)
			}
		}
	}
	const need = "missing: the socket belongs to the first group, and nobody else can open it: name a group that all %s are in"
	switch {
	case !a.Readers.IsEmpty() && len(a.Readers.GIDs) == 0:
		v.errorf("admin.readers.gids", need, "readers and operators")
	case a.Readers.IsEmpty() && !a.Operators.IsEmpty() && len(a.Operators.GIDs) == 0:
		v.errorf("admin.operators.gids", need, "operators")
	}
}

// SocketGroup returns the group of the admin socket: the first of the readers, or else of the operators. set is
// false if only root and the relay's user may open the socket.
func (a Admin) SocketGroup() (gid int, set bool) {
	all := slices.Concat(a.Readers.GIDs, a.Operators.GIDs)
	if len(all) == 0 {
		return 0, false
	}
	return all[0], true
}

// warnings returns likely mistakes about who can open the admin socket.
func (a Admin) warnings() (lines []string) {
	gid, set := a.SocketGroup()
	if !set {
		return nil
	}
	if len(a.Readers.UIDs)+len(a.Readers.GIDs)+len(a.Operators.UIDs)+len(a.Operators.GIDs) > 1 {
		lines = append(lines, fmt.Sprintf("admin: the socket belongs to group %d, and only its members can open it: make all users of admin.readers and admin.operators members", gid))
	}
	if a.Socket == "" {
		lines = append(lines, fmt.Sprintf("admin.socket is missing, and the default is in a directory that is closed to group %d: set admin.socket to a path in a directory which that group may search", gid))
	}
	return lines
}
