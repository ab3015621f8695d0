// Package dashboard has the pages of /ui/: plain HTML, CSS and JavaScript without a build step, which
// read the admin API of the node that served them.
package dashboard

import (
	"compress/gzip"
	"embed"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"
)

//go:embed static
var files embed.FS

// policy lets a page load its own files and call its own origin, and nothing else: no inline script
// or style, no frame, no form.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

var kinds = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

type file struct {
	kind, tag string
	text      []byte
	zipped    []byte
}

// Handler serves the pages below /ui/. They hold no data, and need no token.
func Handler() http.Handler {
	all := loaded()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.URL.Path, "/ui/")
		if name == "" {
			name = "index.html"
		}
		f, ok := all[name]
		if !ok {
			http.NotFound(w, r)
			return
		}
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Content-Type", f.kind)
		h.Set("Cache-Control", "no-cache") // asks each time, by the tag: files of two releases must not mix
		h.Set("ETag", f.tag)
		h.Set("Vary", "Accept-Encoding")
		if r.Header.Get("If-None-Match") == f.tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		body := f.text
		if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			h.Set("Content-Encoding", "gzip")
			body = f.zipped
		}
		_, _ = w.Write(body) // the client may have left
	})
}

// loaded reads the files once, at the first use.
var loaded = sync.OnceValue(func() map[string]*file {
	all := make(map[string]*file)
	entries, err := fs.ReadDir(files, "static")
	if err != nil {
		panic(err) // the files are part of the program
	}
	for _, e := range entries {
		text, err := files.ReadFile("static/" + e.Name())
		if err != nil {
			panic(err)
		}
		f := &file{kind: kinds[path.Ext(e.Name())], text: text}
		sum := fnv.New64a()
		_, _ = sum.Write(text)
		f.tag = fmt.Sprintf(`"%016x"`, sum.Sum64())
		var b strings.Builder
		z := gzip.NewWriter(&b)
		_, _ = z.Write(text) // a strings.Builder never fails
		_ = z.Close()
		f.zipped = []byte(b.String())
		all[e.Name()] = f
	}
	return all
})
