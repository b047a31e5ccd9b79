package deploy_test

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// copied are the upstreams of a text from which people copy: a config file, values of the chart, or a manifest with a
// config file in it.
func copied(text string) (all []map[string]any) {
	for part := range strings.SplitSeq(text, "\n---\n") {
		var root map[string]any
		if yaml.Unmarshal([]byte(part), &root) != nil {
			continue // no map
		}
		if config, is := root["config"].(map[string]any); is {
			root = config
		}
		if file, is := root["configFile"].(string); is {
			all = append(all, copied(file)...)
		}
		if data, is := root["data"].(map[string]any); is {
			file, _ := data["relay.yaml"].(string)
			all = append(all, copied(file)...)
		}
		upstreams, _ := root["upstreams"].([]any)
		for _, u := range upstreams {
			if fields, is := u.(map[string]any); is {
				all = append(all, fields)
			}
		}
	}
	return all
}

// TestWhatIsCopiedSetsTheProfile: where it is not set, everything is let in. Blocks of documents that show some fields of
// an upstream without its source are left alone.
func TestWhatIsCopiedSetsTheProfile(t *testing.T) {
	block, found := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$"), 0
	for _, root := range []string{"../README.md", "../docs", "../samples", "../examples", "."} {
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			var texts []string
			switch filepath.Ext(path) {
			case ".md":
				for _, m := range block.FindAllStringSubmatch(string(read(t, path)), -1) {
					texts = append(texts, m[1])
				}
			case ".yaml":
				if strings.Contains(path, "templates") {
					return nil
				}
				texts = append(texts, string(read(t, path)))
			}
			for _, u := range copied(strings.Join(texts, "\n---\n")) {
				if u["xds"] == nil && u["kubernetes"] == nil && u["file"] == nil {
					continue
				}
				found++
				if rules, _ := u["import"].(map[string]any); rules["profile"] == nil {
					t.Errorf("%s: the upstream %v does not set import.profile", path, u["name"])
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 40 {
		t.Errorf("%d upstreams found", found)
	}
}
