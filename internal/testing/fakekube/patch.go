package fakekube

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// patch carries out a JSON patch with the operations test, add, replace and remove.
func patch(o map[string]any, body []byte) error {
	var ops []struct {
		Op, Path string
		Value    any
	}
	if err := json.Unmarshal(body, &ops); err != nil {
		return err
	}
	var root any = o
	for _, op := range ops {
		parts := strings.Split(strings.TrimPrefix(op.Path, "/"), "/")
		for i, part := range parts {
			parts[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
		}
		if _, err := patchAt(root, parts, op.Op, op.Value); err != nil {
			return fmt.Errorf("%s %s: %w", op.Op, op.Path, err)
		}
	}
	return nil
}

// patchAt carries out an operation below a value, and returns the value that replaces it.
func patchAt(in any, path []string, op string, value any) (any, error) {
	switch in := in.(type) {
	case map[string]any:
		old, there := in[path[0]]
		if len(path) > 1 {
			next, err := patchAt(old, path[1:], op, value)
			if err == nil {
				in[path[0]] = next
			}
			return in, err
		}
		switch {
		case op == "add":
			in[path[0]] = value
		case op == "test" && reflect.DeepEqual(old, value):
		case !there:
			return in, fmt.Errorf("%s is missing", path[0])
		case op == "replace":
			in[path[0]] = value
		case op == "remove":
			delete(in, path[0])
		default:
			return in, fmt.Errorf("testing value %v failed", path[0])
		}
		return in, nil
	case []any:
		i, err := strconv.Atoi(path[0])
		if path[0] == "-" && op == "add" {
			return append(in, value), nil
		}
		if err != nil || i < 0 || i > len(in) || i == len(in) && (op != "add" || len(path) > 1) {
			return in, fmt.Errorf("%s is no index", path[0])
		}
		switch {
		case len(path) > 1:
			in[i], err = patchAt(in[i], path[1:], op, value)
			return in, err
		case op == "add":
			return append(in[:i:i], append([]any{value}, in[i:]...)...), nil
		case op == "remove":
			return append(in[:i:i], in[i+1:]...), nil
		case op == "replace":
			in[i] = value
		case !reflect.DeepEqual(in[i], value):
			return in, fmt.Errorf("testing value %v failed", path[0])
		}
		return in, nil
	}
	return in, fmt.Errorf("%s is missing", path[0])
}
