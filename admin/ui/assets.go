package ui

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
)

//go:embed vendor/idiomorph.min.js static/live.js static/style.css static/icon.svg
var assetFiles embed.FS

// asset is a file that browsers cache without end: its address contains the hash of its content.
type asset struct {
	content     []byte
	contentType string
}

// loadAssets returns the assets by path below the path of the pages, and these paths by file name.
func loadAssets() (byPath map[string]asset, paths map[string]string, err error) {
	byPath, paths = map[string]asset{}, map[string]string{}
	types := map[string]string{".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
	err = fs.WalkDir(assetFiles, ".", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := assetFiles.ReadFile(file)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(content)
		at := "/assets/" + hex.EncodeToString(sum[:6]) + "/" + path.Base(file)
		byPath[at], paths[path.Base(file)] = asset{content, types[path.Ext(file)]}, at
		return nil
	})
	return byPath, paths, err
}

// asset answers with an asset.
func (p *Pages) asset(w http.ResponseWriter, r *http.Request) {
	a, ok := p.assets[strings.TrimPrefix(r.URL.Path, Path)]
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", a.contentType)
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	_, _ = w.Write(a.content) // the client may have gone
}
