package dashboard

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

// most bounds the pages, in bytes: they are read by hand, and are part of the router.
const most = 80_000

func get(path string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	Handler().ServeHTTP(w, r)
	return w
}

// inline is what the content policy forbids: scripts, styles and listeners in HTML, evaluation, style attributes.
var inline = regexp.MustCompile(`<script>|<style|\son[a-z]+=|\bstyle=|javascript:|\beval\(|new Function|innerHTML|insertAdjacentHTML|document\.write|setAttribute\('style'`)

func TestFilesAreServedUnderThePolicy(t *testing.T) {
	total := 0
	for name, f := range loaded() {
		total += len(f.text)
		w := get("/ui/" + name)
		if w.Code != http.StatusOK || !bytes.Equal(w.Body.Bytes(), f.text) || f.kind == "" || w.Header().Get("Content-Type") != f.kind {
			t.Errorf("%s: %d, %q", name, w.Code, w.Header().Get("Content-Type"))
		}
		for _, want := range []string{"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} {
			if got := w.Header().Get("Content-Security-Policy"); !strings.Contains(got, want) || strings.Contains(got, "unsafe") {
				t.Errorf("%s: policy %q, want %s", name, got, want)
			}
		}
		if w = get("/ui/"+name, "If-None-Match", f.tag); w.Code != http.StatusNotModified || w.Body.Len() > 0 {
			t.Errorf("%s again: %d, %d bytes", name, w.Code, w.Body.Len())
		}
		w = get("/ui/"+name, "Accept-Encoding", "gzip, br")
		z, err := gzip.NewReader(w.Body)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(z); err != nil || !bytes.Equal(text, f.text) {
			t.Errorf("%s compressed: %d bytes, %v", name, len(text), err)
		}
		if found := inline.Find(f.text); found != nil && name != "icon.svg" {
			t.Errorf("%s has %q, which the policy forbids", name, found)
		}
		if found := regexp.MustCompile(`https?://[a-z.]+`).FindAllString(string(f.text), -1); len(found) > 0 {
			for _, url := range found {
				if url != "http://www.w" && url != "http://www.w3.org" { // the namespace of SVG
					t.Errorf("%s names %s: pages load nothing from elsewhere", name, url)
				}
			}
		}
	}
	if total > most {
		t.Errorf("the files have %d bytes, want %d at most", total, most)
	}
}

func TestPagesNameFilesThatExist(t *testing.T) {
	for name, f := range loaded() {
		for _, m := range regexp.MustCompile(`(?:from '\./|src="|href=")([a-z]+\.[a-z]+)`).FindAllStringSubmatch(string(f.text), -1) {
			if loaded()[m[1]] == nil {
				t.Errorf("%s names %s, which is no file", name, m[1])
			}
		}
	}
	index := get("/ui/")
	if index.Code != http.StatusOK || !strings.Contains(index.Body.String(), `src="app.js"`) {
		t.Errorf("/ui/: %d", index.Code)
	}
	for _, path := range []string{"/ui/nothing", "/ui/../dashboard.go", "/ui/static/app.js"} {
		if w := get(path); w.Code != http.StatusNotFound {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}
