package deploy_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// TestImage runs the container image's one program as the image says: its command and user, with the image's files as the whole file
// system. Then podman loads the image and runs it.
func TestImage(t *testing.T) {
	image := filepath.Join(packages(t), "old", "grapevine-1.0.0-image.tar")
	host(t, "ip", "link", "set", "lo", "up")
	root := t.TempDir()
	user, args := unpack(t, image, root)
	if user != 65532 {
		t.Errorf("the image runs as user %d", user)
	}
	address := []string{"GRAPEVINE_LISTEN=127.0.0.1:8080", "GRAPEVINE_ADMIN=127.0.0.1:8081", "GRAPEVINE_DRAIN_GRACE=0s", "GRAPEVINE_DRAIN_CLOSE=0s"}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env, cmd.Dir = address, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: user, Gid: user}}
	serves(t, cmd)

	podman := []string{"--root", filepath.Join(root, "images"), "--runroot", filepath.Join(root, "run"), "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs"}
	t.Log(host(t, "podman", append(podman, "load", "--quiet", "-i", image)...))
	start := append(podman, "run", "--rm", "--network", "host", "--cgroups", "disabled", "--read-only")
	for _, a := range address {
		start = append(start, "--env", a)
	}
	// crun refuses hosts that have the hierarchies of both versions of control groups.
	const hide = `if mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi; exec podman "$@"`
	serves(t, exec.Command("unshare", append([]string{"--mount", "sh", "-ec", hide, "sh"}, append(start, "localhost/grapevine:1.0.0")...)...))
}

// serves starts a router, asks whether it serves, and ends it by a signal.
func serves(t *testing.T, router *exec.Cmd) {
	t.Helper()
	var log bytes.Buffer // read after its end only
	router.Stderr = &log
	if err := router.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- router.Wait() }()
	eventually(t, "an answer of the router in the image", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("it ends: %v\n%s", err, log.Bytes())
		default:
		}
		resp, err := http.Get("http://127.0.0.1:8080/healthz")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	if err := errors.Join(router.Process.Signal(syscall.SIGTERM), <-ended); err != nil {
		t.Errorf("%v\n%s", err, log.Bytes())
	}
}

// unpack writes the files of an image for this architecture below root, and returns its user and command.
func unpack(t *testing.T, image, root string) (user uint32, command []string) {
	t.Helper()
	text, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	files := untar(t, bytes.NewReader(text))
	type descriptor struct {
		Digest   string
		Platform struct{ Architecture string }
	}
	var document struct {
		Manifests, Layers []descriptor
		Config            json.RawMessage
	}
	read := func(digest string, into any) []byte {
		text := files["blobs/sha256/"+strings.TrimPrefix(digest, "sha256:")]
		if into != nil {
			if err := json.Unmarshal(text, into); err != nil {
				t.Fatalf("%s: %v", digest, err)
			}
		}
		return text
	}
	if err := json.Unmarshal(files["index.json"], &document); err != nil {
		t.Fatal(err)
	}
	read(document.Manifests[0].Digest, &document)
	for _, d := range document.Manifests {
		if d.Platform.Architecture == runtime.GOARCH {
			read(d.Digest, &document)
		}
	}
	var at descriptor
	if err := json.Unmarshal(document.Config, &at); err != nil || len(document.Layers) != 1 {
		t.Fatalf("no image for %s: %v", runtime.GOARCH, err)
	}
	var config struct {
		Config struct {
			User            string
			Entrypoint, Cmd []string
		}
	}
	read(at.Digest, &config)
	zipped, err := gzip.NewReader(bytes.NewReader(read(document.Layers[0].Digest, nil)))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range untar(t, zipped) {
		if err := os.WriteFile(filepath.Join(root, name), text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(strings.Split(config.Config.User, ":")[0]), &user); err != nil {
		t.Fatal(err)
	}
	return user, append(config.Config.Entrypoint, config.Config.Cmd...)
}

func untar(t *testing.T, r io.Reader) map[string][]byte {
	t.Helper()
	files := make(map[string][]byte)
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err == nil && h.Typeflag == tar.TypeReg {
			files[h.Name], err = io.ReadAll(archive)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
