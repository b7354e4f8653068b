package console

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"strings"
	"sync"
)

//go:embed assets
var assetFiles embed.FS

// edition names all assets as they are now, by the first bytes of a digest. It is
// a part of their path, so that a module's relative import stays in its edition,
// and browsers may keep what they have until there is another.
var edition = sync.OnceValue(func() string {
	sum := sha256.New()
	_ = fs.WalkDir(assetFiles, ".", func(path string, d fs.DirEntry, err error) error { // what is embedded can be read
		if err != nil || d.IsDir() {
			return err
		}
		content, err := assetFiles.ReadFile(path)
		_, _ = sum.Write(append([]byte(path+"\x00"), content...)) // a hash takes all
		return err
	})
	return hex.EncodeToString(sum.Sum(nil)[:6])
})

// assetURL is where a file of assets/ is served.
func assetURL(name string) string { return "/assets/" + edition() + "/" + name }

// AssetURL is the same for the pages of other packages.
func AssetURL(name string) string { return assetURL(name) }

// assetHandler serves them. A page of another edition, left open while trellis
// was replaced, gets what there is now, and nobody keeps that.
func assetHandler() http.Handler {
	files := http.FileServerFS(assetFiles)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/assets/"), "/")
		if name == "" || strings.HasSuffix(name, "/") {
			http.NotFound(w, r) // no listings
			return
		}
		if w.Header().Set("Cache-Control", "no-cache"); asked == edition() {
			w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
		}
		r = r.Clone(r.Context())
		r.URL.Path, r.URL.RawPath = "/assets/"+name, ""
		files.ServeHTTP(w, r)
	})
}
