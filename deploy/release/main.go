// Command release makes the files of a release: for each architecture a tarball, a deb, an rpm and a bill of materials; a container
// image for all; their checksums and, with a key, a signature. make release runs it in the root of the repository.
//
// The same commit, version and Go make the same bytes in any directory and at any time: every file has the time of the commit
// (SOURCE_DATE_EPOCH overrides it), and root owns it.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Tools that make what is in a release; pinned, because another version may write other bytes.
const (
	nfpm      = "github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2"
	cyclonedx = "github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0"
)

// keyVariable names the file with the private key (OpenSSH, ed25519) that signs a release.
const keyVariable = "GRAPEVINE_RELEASE_KEY"

type release struct {
	version string    // X.Y.Z or X.Y.Z-PRE
	time    time.Time // of every file
	tags    string    // of the router's build; empty in every release that is published
	debOnly bool      // without the other files; false in every release that is published
	out     string    // directory of the release's files
	work    string    // temporary
	files   []string  // finished, in out
}

func main() {
	version := flag.String("version", "", "version, X.Y.Z or X.Y.Z-PRE")
	out := flag.String("out", "out/release", "directory for the files; it is emptied first")
	arches := flag.String("arch", "amd64,arm64", "architectures, comma-separated")
	tags := flag.String("tags", "", "build tags of a release that only tests use")
	debOnly := flag.Bool("deb-only", false, "make the deb and no other file, for a test that installs nothing else")
	flag.Parse()
	if err := run(*version, *out, *tags, strings.Split(*arches, ","), *debOnly); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(version, out, tags string, arches []string, debOnly bool) error {
	version, err := checkVersion(version)
	if err != nil {
		return err
	}
	for _, arch := range arches {
		if arch != "amd64" && arch != "arm64" {
			return fmt.Errorf("-arch %s: only amd64 and arm64 are released", arch)
		}
	}
	key := os.Getenv(keyVariable)
	if key != "" {
		if err := checkChangelog("CHANGELOG.md", version); err != nil {
			return err
		}
	}
	syscall.Umask(0o022) // packages take the modes of directories from the tree
	r := &release{version: version, tags: tags, out: out, debOnly: debOnly}
	if r.time, err = sourceTime(); err != nil {
		return err
	}
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	if r.work, err = os.MkdirTemp("", "grapevine-release"); err != nil {
		return err
	}
	defer os.RemoveAll(r.work)
	if err := r.documents(); err != nil {
		return err
	}
	var programs []program
	for _, arch := range arches {
		if err := r.build(arch); err != nil {
			return err
		}
		programs = append(programs, program{arch, r.path(arch, "grapevine")})
		steps := []func(string) error{r.tarball, r.packages, r.materials}
		if debOnly {
			steps = []func(string) error{r.packages}
		}
		for _, step := range steps {
			if err := step(arch); err != nil {
				return err
			}
		}
	}
	if !debOnly {
		image := fmt.Sprintf("grapevine-%s-image.tar", version)
		if err := writeImage(filepath.Join(out, image), version, r.time, programs); err != nil {
			return err
		}
		r.files = append(r.files, image)
	}
	sums, err := writeSums(out, r.files)
	if err != nil {
		return err
	}
	if key == "" {
		fmt.Printf("%s: %d files, NOT SIGNED: %s names no key\n", out, len(r.files), keyVariable)
		return nil
	}
	if err := sign(sums, key); err != nil {
		return err
	}
	fmt.Printf("%s: %d files, signed with %s\n", out, len(r.files), key)
	return nil
}

var versions = regexp.MustCompile(`^v?([0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?)$`)

func checkVersion(v string) (string, error) {
	m := versions.FindStringSubmatch(v)
	if m == nil || strings.HasSuffix(v, "-dirty") {
		return "", fmt.Errorf("%q is no version of a release: tag the commit vX.Y.Z, or make release VERSION=X.Y.Z", v)
	}
	return m[1], nil
}

// checkChangelog refuses a release that would be signed without a word about what it changes.
func checkChangelog(file, version string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		if heading := strings.Fields(line); len(heading) > 1 && heading[0] == "##" && heading[1] == version {
			return nil
		}
	}
	return fmt.Errorf("%s has no section \"## %s\": name the section Unreleased so, with the date", file, version)
}

// sourceTime is SOURCE_DATE_EPOCH, else the time of the commit.
func sourceTime() (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		out, err := exec.Command("git", "log", "-1", "--format=%ct").Output()
		if err != nil {
			return time.Time{}, fmt.Errorf("the time of the commit: %w: outside a repository set SOURCE_DATE_EPOCH", err)
		}
		text = strings.TrimSpace(string(out))
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

func (r *release) path(parts ...string) string {
	return filepath.Join(append([]string{r.work}, parts...)...)
}

// call runs a program with the variables beside its own environment; its output goes to stderr.
func call(env []string, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return nil
}

// build makes the programs for an architecture: static, without paths, and for the oldest processors of it. The packages have only the first.
func (r *release) build(arch string) error {
	names := []string{"grapevine", "grapevine-lab"}
	if r.debOnly {
		names = names[:1]
	}
	for _, name := range names {
		err := call([]string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + arch, "GOAMD64=v1", "GOARM64=v8.0", "GOFLAGS="}, "go", "build",
			"-trimpath", "-buildvcs=false", "-tags", r.tags, "-ldflags", "-s -w -buildid= -X grapevine.example/cmd/commandline.linked="+r.version, "-o", r.path(arch, name), "./cmd/"+name)
		if err != nil {
			return err
		}
	}
	return nil
}

// materials writes the bill of materials of an architecture's router, CycloneDX in JSON, by what Go recorded in it.
func (r *release) materials(arch string) error {
	file := fmt.Sprintf("grapevine-%s-linux-%s.cdx.json", r.version, arch)
	err := call([]string{"GOFLAGS=-trimpath"}, "go", "run", cyclonedx, "bin", "-json", "-std", "-noserial", "-notimestamp",
		"-version", "v"+r.version, "-output", filepath.Join(r.out, file), r.path(arch, "grapevine"))
	r.files = append(r.files, file)
	return err
}

// exists tells whether a file or directory of the repository is there.
func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, os.ErrNotExist)
}
