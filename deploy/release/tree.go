package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
)

const (
	// No public address exists yet.
	maintainer = "grapevine maintainers <maintainers@grapevine.example>"
	homepage   = "https://grapevine.example"
)

// documents makes what no architecture changes, below doc.
func (r *release) documents() error {
	err := call([]string{"GOFLAGS=-buildvcs=false"}, "go", "test", "./cmd/grapevine", "-count=1", "-run", "^TestManual$", "-args",
		"-manual", r.path("doc"), "-manual-source", "grapevine "+r.version, "-manual-date", r.time.Format("2006-01-02"))
	if err != nil {
		return err
	}
	licenses, err := thirdParty()
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{
		"third-party.txt": licenses,
		"copyright":       []byte(copyright),
		"changelog":       fmt.Appendf(nil, changelog, packageVersion(r.version), maintainer, r.time.Format("Mon, 02 Jan 2006 15:04:05 -0700")),
	} {
		if err := r.write(r.path("doc", name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

const copyright = `Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: grapevine

Files: *
Copyright: 2026 the authors of grapevine
License: Apache-2.0
 On Debian systems the license is in /usr/share/common-licenses/Apache-2.0.
Comment:
 The program contains Go modules of others. Their licenses are in
 /usr/share/doc/grapevine/third-party.txt.gz.
`

// changelog is in Debian's form; its lines about the release are in CHANGELOG.md.
const changelog = `grapevine (%s) stable; urgency=medium

  * CHANGELOG.md.gz beside this file has the changes.

 -- %s  %s
`

// thirdParty returns the licenses of all modules that both programs link, and of Go.
func thirdParty() ([]byte, error) {
	const form = `{{with .Module}}{{if not .Main}}{"Path":{{printf "%q" .Path}},"Version":{{printf "%q" .Version}},"Dir":{{printf "%q" .Dir}}}{{end}}{{end}}`
	cmd := exec.Command("go", "list", "-deps", "-f", form, "./cmd/grapevine", "./cmd/grapevine-lab")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	type module struct{ Path, Version, Dir string }
	modules := []module{{"go", "the language's library and runtime", strings.TrimSpace(string(root))}}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var m module
		if err := d.Decode(&m); err == io.EOF {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		if !slices.Contains(modules, m) {
			modules = append(modules, m)
		}
	}
	slices.SortFunc(modules[1:], func(a, b module) int { return strings.Compare(a.Path, b.Path) })
	var b bytes.Buffer
	for _, m := range modules {
		found := false
		for _, name := range []string{"LICENSE", "LICENSE.txt", "LICENSE.md", "LICENSE-BSD", "LICENSE-MIT", "COPYING", "NOTICE"} {
			text, err := os.ReadFile(filepath.Join(m.Dir, name))
			if err != nil {
				continue
			}
			found = true
			fmt.Fprintf(&b, "==== %s %s, %s ====\n\n%s\n\n", m.Path, m.Version, name, bytes.TrimSpace(text))
		}
		if !found && m.Path != "go" { // distributions keep Go's elsewhere
			return nil, fmt.Errorf("%s %s has no license file: no release may contain it", m.Path, m.Version)
		}
	}
	return b.Bytes(), nil
}

// tarball packs what runs anywhere: both programs, the documents, the units and the examples.
func (r *release) tarball(arch string) error {
	name := fmt.Sprintf("grapevine-%s-linux-%s", r.version, arch)
	dir := r.path(arch, "tarball", name)
	for to, from := range map[string]string{
		"grapevine":       r.path(arch, "grapevine"),
		"grapevine-lab":   r.path(arch, "grapevine-lab"),
		"LICENSE":         "LICENSE",
		"third-party.txt": r.path("doc", "third-party.txt"),
		"CHANGELOG.md":    "CHANGELOG.md",
		"SECURITY.md":     "SECURITY.md",
		"operate.md":      "docs/operate.md",
		"symptoms.md":     "docs/symptoms.md",
		"grapevine.yaml":  "deploy/package/grapevine.yaml",
		"man":             r.path("doc", "man"),
		"completion":      r.path("doc", "completion"),
		"systemd":         "deploy/systemd",
	} {
		if err := r.copy(from, filepath.Join(dir, to)); err != nil {
			return err
		}
	}
	if err := r.examples(filepath.Join(dir, "examples")); err != nil {
		return err
	}
	r.files = append(r.files, name+".tar.gz")
	return writeTarball(filepath.Join(r.out, name+".tar.gz"), r.path(arch, "tarball"), r.time)
}

// examples copies the example fleet and, where the repository has them, boards and alert rules.
func (r *release) examples(dir string) error {
	for from, to := range map[string]string{"deploy/example": "fleet", "deploy/grafana": "grafana", "deploy/prometheus": "prometheus"} {
		if !exists(from) {
			continue
		}
		if err := r.copy(from, filepath.Join(dir, to)); err != nil {
			return err
		}
	}
	return nil
}

// packages makes the deb and the rpm, or with debOnly the deb.
func (r *release) packages(arch string) error {
	tree := r.path(arch, "tree")
	doc := filepath.Join(tree, "usr/share/doc/grapevine")
	for to, from := range map[string]string{
		"usr/bin/grapevine":                                  r.path(arch, "grapevine"),
		"usr/lib/systemd/system/grapevine.service":           "deploy/systemd/grapevine.service",
		"usr/lib/systemd/system/grapevine.socket":            "deploy/systemd/grapevine.socket",
		"usr/lib/sysusers.d/grapevine.conf":                  "deploy/systemd/grapevine.sysusers",
		"usr/share/doc/grapevine/operate.md":                 "docs/operate.md",
		"usr/share/doc/grapevine/symptoms.md":                "docs/symptoms.md",
		"usr/share/doc/grapevine/SECURITY.md":                "SECURITY.md",
		"usr/share/doc/grapevine/copyright":                  r.path("doc", "copyright"),
		"usr/share/bash-completion/completions/grapevine":    r.path("doc", "completion", "grapevine.bash"),
		"usr/share/fish/vendor_completions.d/grapevine.fish": r.path("doc", "completion", "grapevine.fish"),
		"etc/grapevine/grapevine.yaml":                       "deploy/package/grapevine.yaml",
		"deb/_grapevine":                                     r.path("doc", "completion", "_grapevine"),
		"deb/lintian-overrides":                              "deploy/package/lintian-overrides",
		"rpm/_grapevine":                                     r.path("doc", "completion", "_grapevine"),
	} {
		if err := r.copy(from, filepath.Join(tree, to)); err != nil {
			return err
		}
	}
	if err := r.examples(filepath.Join(doc, "examples")); err != nil {
		return err
	}
	pages, err := filepath.Glob(r.path("doc", "man", "*"))
	if err != nil {
		return err
	}
	zipped := map[string]string{
		"CHANGELOG.md":                   filepath.Join(doc, "CHANGELOG.md.gz"),
		r.path("doc", "third-party.txt"): filepath.Join(doc, "third-party.txt.gz"),
		r.path("doc", "changelog"):       filepath.Join(tree, "deb", "changelog.gz"),
	}
	for _, p := range pages {
		zipped[p] = filepath.Join(tree, "usr/share/man/man"+strings.TrimPrefix(filepath.Ext(p), "."), filepath.Base(p)+".gz")
	}
	for from, to := range zipped {
		if err := r.zip(from, to); err != nil {
			return err
		}
	}
	config := r.path(arch, "nfpm.yaml")
	values := map[string]string{"Arch": arch, "Version": r.version, "Maintainer": maintainer, "Homepage": homepage,
		"Tree": tree, "Time": r.time.Format("2006-01-02T15:04:05Z")}
	if err := r.fill("deploy/package/nfpm.yaml", config, values); err != nil {
		return err
	}
	version := packageVersion(r.version)
	machine := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch]
	targets := map[string]string{
		"deb": fmt.Sprintf("grapevine_%s_%s.deb", version, arch),
		"rpm": fmt.Sprintf("grapevine-%s-1.%s.rpm", version, machine),
	}
	if r.debOnly {
		delete(targets, "rpm")
	}
	for kind, target := range targets {
		err := call([]string{"GOFLAGS=-trimpath", fmt.Sprintf("SOURCE_DATE_EPOCH=%d", r.time.Unix())}, "go", "run", nfpm, "package",
			"--config", config, "--packager", kind, "--target", filepath.Join(r.out, target))
		if err != nil {
			return err
		}
		r.files = append(r.files, target)
	}
	return nil
}

// packageVersion is the version as dpkg and rpm compare it: 1.0.0~rc.1 comes before 1.0.0.
func packageVersion(v string) string { return strings.Replace(v, "-", "~", 1) }

func (r *release) fill(from, to string, values map[string]string) error {
	t, err := template.ParseFiles(from)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := t.Option("missingkey=error").Execute(&b, values); err != nil {
		return err
	}
	return r.write(to, b.Bytes(), 0o644)
}

// copy copies a file, or a directory with all that is in it, with the release's time. Modes are 0755 for programs, 0644 otherwise.
func (r *release) copy(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		below, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if bytes.HasPrefix(text, []byte("\x7fELF")) {
			mode = 0o755
		}
		return r.write(filepath.Join(to, below), text, mode)
	})
}

func (r *release) zip(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := w.Write(text); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return r.write(to, b.Bytes(), 0o644)
}

// write makes a file whose mode is independent of the umask, and whose time and directory's time are the release's.
func (r *release) write(path string, text []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, text, mode); err != nil {
		return err
	}
	if err := os.Chmod(path, mode); err != nil {
		return err
	}
	for _, p := range []string{path, filepath.Dir(path)} {
		if err := os.Chtimes(p, r.time, r.time); err != nil {
			return err
		}
	}
	return nil
}
