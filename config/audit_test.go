package config_test

import (
	"runtime"
	"slices"
	"strings"
	"testing"
)

// TestWhoMayUseTheSocketAndTheAuditLogAreChecked, with the line of each mistake.
func TestWhoMayUseTheSocketAndTheAuditLogAreChecked(t *testing.T) {
	const need = "missing: the socket belongs to the first group, and nobody else can open it: name a group that all "
	for text, want := range map[string]string{
		"audit: {file: a.log, maxBytes: 1048576, maxFiles: 2, required: true}": "",
		"audit: {stdout: true, required: true}":                                "",
		"audit: {file: a.log,\n stdout: true}":                                 "10: audit.stdout: audit.file is set, too: choose one of them",
		"audit: {required: true}":                                              "9: audit.required: there is no audit log: set audit.file, or audit.stdout: true",
		"audit: {stdout: true,\n maxFiles: 3}":                                 "10: audit.maxFiles: only with audit.file: the relay does not bound what others keep of its standard output",
		"audit: {file: a.log, maxFiles: 1}":                                    "9: audit.maxFiles: 1 is out of range: 2 to 1000",
		"audit: {file: run/s}\nadmin: {socket: run/s}":                         "9: audit.file: /etc/relay/run/s is the admin socket: choose another path",
		"admin: {readers: {gids: [1]}, operators: {uids: [5], gids: [2]}}":     "",
		"admin: {operators: {gids: [0]}}":                                      "",
		"admin: {operators: {}}":                                               "9: admin.operators: nobody is in it: name uids or gids, or leave it out",
		"admin: {operators: {uids: [5]}}":                                      "9: admin.operators.gids: " + need + "operators are in",
		"admin: {readers: {uids: [5]},\n operators: {gids: [2]}}":              "9: admin.readers.gids: " + need + "readers and operators are in",
		"admin: {readers: {gids: [1,\n -1]}}":                                  "10: admin.readers.gids[1]: -1 is out of range: 0 to 4294967294",
		"admin: {readers: {gids: [4294967295]}}":                               "9: admin.readers.gids[0]: 4294967295 is out of range: 0 to 4294967294",
		"admin: {readers: {gids: [1, 65534]}}":                                 "9: admin.readers.gids[1]: 65534 stands for all users or groups that the relay can not see: name others",
		"admin: {readers: {gids: [1, 1]}}":                                     "9: admin.readers.gids[1]: 1 is in the list already",
		"admin: {readers: {gids: [1,\n 2]}, operators: {gids: [2]}}":           "10: admin.readers.gids[1]: 2 is in admin.operators.gids, too, and operators may read: leave it out here",
		"admin: {readers: {gids: [1], uids: [2]}, operators: {uids: [2]}}":     "9: admin.readers.uids[0]: 2 is in admin.operators.uids, too, and operators may read: leave it out here",
		"admin: {readers: {gids: [staff]}}":                                    "9: admin.readers.gids[0]: want a whole number, not \"staff\"",
	} {
		_, err := parse("/etc/relay/relay.yaml", []byte(minimal+text+"\n"))
		if strings.Contains(text, "admin: {") && runtime.GOOS != "linux" {
			continue // there it is a mistake
		}
		switch got := ""; {
		case want == "" && err != nil:
			t.Errorf("%s: %v", text, err)
		case want == "":
		default:
			if err != nil {
				got = err.Error()
			}
			if !strings.Contains(got, "relay.yaml:"+want) || strings.Count(got, "relay.yaml:") != 1 {
				t.Errorf("%s:\n%s\nwant %s", text, got, want)
			}
		}
	}
}

// TestOneGroupOpensTheSocket: the first of the readers, or else of the operators, and validate warns of others.
func TestOneGroupOpensTheSocket(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the fields are a mistake on this system")
	}
	const others, place = "admin: the socket belongs to group 1, and only its members can open it", "admin.socket is missing, and the default is in a directory that is closed to group 1"
	for text, want := range map[string][]string{
		"":                                     nil,
		"operators: {gids: [1]}, socket: s":    nil,
		"operators: {gids: [1]}":               {place},
		"operators: {gids: [1, 2]}, socket: s": {others},
		"readers: {gids: [1]}, operators: {gids: [2]}":            {others, place},
		"readers: {gids: [1]}, operators: {uids: [2]}, socket: s": {others},
	} {
		c, err := parse("relay.yaml", []byte(minimal+"admin: {"+text+"}\n"))
		if err != nil {
			t.Fatal(err)
		}
		got := c.Warnings()
		if !slices.EqualFunc(got, want, strings.HasPrefix) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
		if gid, set := c.Admin.SocketGroup(); set != (text != "") || set && gid != 1 {
			t.Errorf("%s: group %d, %v", text, gid, set)
		}
	}
}
