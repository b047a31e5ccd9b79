package fakekube

import (
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// patched returns an object after a JSON patch, as a real server does.
func patched(live *unstructured.Unstructured, body []byte) (*unstructured.Unstructured, error) {
	patch, err := jsonpatch.DecodePatch(body)
	if err != nil {
		return nil, err
	}
	text, err := live.MarshalJSON()
	if err != nil {
		return nil, err
	}
	if text, err = patch.Apply(text); err != nil {
		return nil, err
	}
	next := &unstructured.Unstructured{}
	return next, next.UnmarshalJSON(text)
}
