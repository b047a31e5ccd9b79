package apiserver

import (
	"encoding/json"
	"errors"
	"fmt"

	"meshrelay/internal/yamlpos"
)

var (
	// fileLimits bound a kubeconfig that the config names. It may have many clusters. No field of a kubeconfig
	// is a number: "name: .0_", as kubectl writes it, is a text.
	fileLimits = yamlpos.Limits{Bytes: maxCredentials, Values: 100_000, Plain: true, Texts: true}
	// foundLimits bound the kubeconfig of a found cluster.
	foundLimits = yamlpos.Limits{Bytes: MaxKubeconfig, Values: 5_000, Plain: true, Texts: true}
)

// plainOf returns a kubeconfig of which the library makes nothing much larger: the text itself where it can not
// have aliases, else what it has, as JSON. Errors quote nothing of the text, which has secrets.
func plainOf(text []byte, limits yamlpos.Limits) ([]byte, error) {
	if yamlpos.Plain(text, limits) {
		return text, nil
	}
	documents, err := yamlpos.Decode(text, limits)
	if syntax, is := errors.AsType[*yamlpos.SyntaxError](err); is {
		return nil, fmt.Errorf("line %d: it is not YAML", syntax.Line)
	}
	if err != nil || len(documents) == 0 {
		return nil, err
	}
	return json.Marshal(documents[0])
}
