package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var day = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestVersion(t *testing.T) {
	for given, want := range map[string]string{"v1.2.3": "1.2.3", "1.2.3": "1.2.3", "v1.2.3-rc.1": "1.2.3-rc.1",
		"": "", "dev": "", "1.2": "", "24e8166": "", "v1.2.3-4-gabcdef0": "", "v1.2.3-dirty": ""} {
		got, err := checkVersion(given)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", given, got, err)
		}
	}
	if err := run("1.0.0", t.TempDir(), "", []string{"sparc"}, false); err == nil || !strings.Contains(err.Error(), "sparc") {
		t.Errorf("an architecture that is not released: %v", err)
	}
}

func TestChangelog(t *testing.T) {
	file := write(t, filepath.Join(t.TempDir(), "CHANGELOG.md"), "# Changelog\n\n## Unreleased\n\n## 1.2.3 (2026-11-23)\n")
	if err := checkChangelog(file, "1.2.3"); err != nil {
		t.Error(err)
	}
	if err := checkChangelog(file, "1.2.4"); err == nil || !strings.Contains(err.Error(), "## 1.2.4") {
		t.Errorf("a release without a section: %v", err)
	}
}

// The image has one file, and each blob the digest and size under which others refer to it.
func TestImage(t *testing.T) {
	dir := t.TempDir()
	programs := []program{{"amd64", write(t, filepath.Join(dir, "a"), "for amd64")}, {"arm64", write(t, filepath.Join(dir, "b"), "for arm64")}}
	for _, name := range []string{"one.tar", "two.tar"} {
		if err := writeImage(filepath.Join(dir, name), "1.2.3", day, programs); err != nil {
			t.Fatal(err)
		}
	}
	archive := read(t, filepath.Join(dir, "one.tar"))
	if !bytes.Equal(archive, read(t, filepath.Join(dir, "two.tar"))) {
		t.Error("the same programs make two images")
	}
	files := untar(t, bytes.NewReader(archive))
	blob := func(d descriptor, into any) []byte {
		t.Helper()
		text, ok := files["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]
		if !ok || len(text) != d.Size || digest(text) != d.Digest {
			t.Fatalf("%+v: found %v, %d bytes", d, ok, len(text))
		}
		if into != nil {
			if err := json.Unmarshal(text, into); err != nil {
				t.Fatal(err)
			}
		}
		return text
	}
	var root, all index
	if err := json.Unmarshal(files["index.json"], &root); err != nil || len(root.Manifests) != 1 {
		t.Fatalf("index.json: %v, %+v", err, root)
	}
	if name := root.Manifests[0].Annotations["org.opencontainers.image.ref.name"]; name != "grapevine:1.2.3" {
		t.Errorf("the image is named %q", name)
	}
	blob(root.Manifests[0], &all)
	if len(all.Manifests) != len(programs) {
		t.Fatalf("%+v", all)
	}
	for i, d := range all.Manifests {
		var m manifest
		var c imageConfig
		blob(d, &m)
		blob(m.Config, &c)
		if *d.Platform != (platform{programs[i].arch, "linux"}) || c.Architecture != programs[i].arch || len(m.Layers) != 1 || len(c.RootFS.DiffIDs) != 1 {
			t.Fatalf("%+v %+v %+v", d, m, c)
		}
		zipped, err := gzip.NewReader(bytes.NewReader(blob(m.Layers[0], nil)))
		if err != nil {
			t.Fatal(err)
		}
		plain, err := io.ReadAll(zipped)
		if err != nil {
			t.Fatal(err)
		}
		layer := untar(t, bytes.NewReader(plain))
		if digest(plain) != c.RootFS.DiffIDs[0] || len(layer) != 1 || !strings.HasPrefix(string(layer["grapevine"]), "for "+programs[i].arch) {
			t.Errorf("%s: the layer holds %q", programs[i].arch, layer)
		}
		if c.Config.User != "65532:65532" || c.Config.Entrypoint[0] != "/grapevine" {
			t.Errorf("%+v", c.Config)
		}
	}
}

func untar(t *testing.T, r io.Reader) map[string][]byte {
	t.Helper()
	files := make(map[string][]byte)
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if !h.ModTime.Equal(day) || h.Uid != 0 || h.Gid != 0 || h.Uname != "" {
			t.Errorf("%s: %v, owner %d %d %q", h.Name, h.ModTime, h.Uid, h.Gid, h.Uname)
		}
		if h.Typeflag == tar.TypeDir {
			continue
		}
		if files[h.Name], err = io.ReadAll(archive); err != nil {
			t.Fatal(err)
		}
	}
}

// Times and modes of the files in a repository do not reach a tarball.
func TestTarball(t *testing.T) {
	dir := t.TempDir()
	r := &release{time: day}
	for i, name := range []string{"one", "two"} {
		tree := filepath.Join(dir, name)
		from := write(t, filepath.Join(dir, "from", "b", "text"), "text")
		if err := errors.Join(os.Chmod(from, fs.FileMode(0o600+0o066*i)), r.copy(filepath.Join(dir, "from"), filepath.Join(tree, "x")), r.write(filepath.Join(tree, "x", "a"), []byte("\x7fELF"), 0o755)); err != nil {
			t.Fatal(err)
		}
		if err := writeTarball(filepath.Join(dir, name+".tar.gz"), tree, day); err != nil {
			t.Fatal(err)
		}
	}
	one := read(t, filepath.Join(dir, "one.tar.gz"))
	if !bytes.Equal(one, read(t, filepath.Join(dir, "two.tar.gz"))) {
		t.Error("the same files make two tarballs")
	}
	zipped, err := gzip.NewReader(bytes.NewReader(one))
	if err != nil {
		t.Fatal(err)
	}
	files := untar(t, zipped)
	if string(files["x/b/text"]) != "text" || string(files["x/a"]) != "\x7fELF" || len(files) != 2 {
		t.Errorf("%q", files)
	}
}

// Only the key's owner can sign, and a changed list of checksums has no valid signature.
func TestSign(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", key).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	write(t, filepath.Join(dir, "b"), "b")
	write(t, filepath.Join(dir, "a"), "a")
	sums, err := writeSums(dir, []string{"b", "a"})
	if err != nil {
		t.Fatal(err)
	}
	if err := sign(sums, filepath.Join(dir, "none")); err == nil || !strings.Contains(err.Error(), "is not signed") || exists(sums+".sig") {
		t.Errorf("without a key: %v", err)
	}
	if err := sign(sums, key); err != nil {
		t.Fatal(err)
	}
	allowed := write(t, filepath.Join(dir, "allowed"), "release@grapevine namespaces=\""+namespace+"\" "+string(read(t, key+".pub")))
	verify := func() error {
		cmd := exec.Command("ssh-keygen", "-q", "-Y", "verify", "-f", allowed, "-I", "release@grapevine", "-n", namespace, "-s", sums+".sig")
		cmd.Stdin = bytes.NewReader(read(t, sums))
		return cmd.Run()
	}
	if err := verify(); err != nil {
		t.Errorf("the signature: %v", err)
	}
	check := exec.Command("sha256sum", "-c", "--quiet", "SHA256SUMS")
	check.Dir = dir
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	write(t, sums, strings.Replace(string(read(t, sums)), "a", "b", 1))
	if verify() == nil {
		t.Error("the signature holds for other checksums")
	}
}

// The licenses of everything that the programs link go with them.
func TestThirdParty(t *testing.T) {
	t.Chdir("../..")
	text, err := thirdParty()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"==== github.com/valyala/fasthttp v", "==== github.com/hashicorp/raft v", "Mozilla Public License", "==== go.yaml.in/yaml/v3 v"} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("lacks %q", want)
		}
	}
	if bytes.Contains(text, []byte("pgregory.net/rapid")) {
		t.Error("names a module that only tests use")
	}
}
