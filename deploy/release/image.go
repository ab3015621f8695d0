package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"time"
)

// program is a static executable for linux.
type program struct{ arch, path string }

// The part of the OCI image specification (v1.1) that an image of one file needs.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

type imageConfig struct {
	Created      time.Time `json:"created"`
	Architecture string    `json:"architecture"`
	OS           string    `json:"os"`
	Config       struct {
		User         string
		ExposedPorts map[string]struct{}
		Entrypoint   []string
		Cmd          []string
		StopSignal   string
		Labels       map[string]string
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// layout is an OCI image layout in a tar archive.
type layout struct {
	archive *tar.Writer
	at      time.Time
}

// writeImage writes an OCI archive that podman, skopeo and docker (25 or later) load: an image per program, of one file,
// /grapevine, which runs as user 65532 and serves.
func writeImage(file, version string, at time.Time, programs []program) (err error) {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	l := &layout{tar.NewWriter(f), at}
	all := index{SchemaVersion: 2, MediaType: typeIndex}
	for _, p := range programs {
		d, err := l.image(p, version)
		if err != nil {
			return err
		}
		all.Manifests = append(all.Manifests, d)
	}
	d, err := l.document(typeIndex, all)
	if err != nil {
		return err
	}
	d.Annotations = map[string]string{"org.opencontainers.image.ref.name": "grapevine:" + version}
	root, err := json.Marshal(index{SchemaVersion: 2, MediaType: typeIndex, Manifests: []descriptor{d}})
	if err != nil {
		return err
	}
	return errors.Join(
		add(l.archive, "oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644, at),
		add(l.archive, "index.json", root, 0o644, at),
		l.archive.Close())
}

func (l *layout) image(p program, version string) (descriptor, error) {
	text, err := os.ReadFile(p.path)
	if err != nil {
		return descriptor{}, err
	}
	var plain, zipped bytes.Buffer
	files := tar.NewWriter(&plain)
	if err := errors.Join(add(files, "grapevine", text, 0o755, l.at), files.Close()); err != nil {
		return descriptor{}, err
	}
	z, err := gzip.NewWriterLevel(&zipped, gzip.BestCompression)
	if err != nil {
		return descriptor{}, err
	}
	if _, err := z.Write(plain.Bytes()); err != nil {
		return descriptor{}, err
	}
	if err := z.Close(); err != nil {
		return descriptor{}, err
	}
	layer, err := l.blob(typeLayer, zipped.Bytes())
	if err != nil {
		return descriptor{}, err
	}
	c := imageConfig{Created: l.at, Architecture: p.arch, OS: "linux"}
	c.Config.User = "65532:65532"
	c.Config.ExposedPorts = map[string]struct{}{"8080/tcp": {}, "7946/tcp": {}, "7946/udp": {}}
	c.Config.Entrypoint, c.Config.Cmd = []string{"/grapevine"}, []string{"serve"}
	c.Config.StopSignal = "SIGTERM"
	c.Config.Labels = map[string]string{
		"org.opencontainers.image.title":    "grapevine",
		"org.opencontainers.image.version":  version,
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
	c.RootFS.Type, c.RootFS.DiffIDs = "layers", []string{digest(plain.Bytes())}
	config, err := l.document(typeConfig, c)
	if err != nil {
		return descriptor{}, err
	}
	d, err := l.document(typeManifest, manifest{SchemaVersion: 2, MediaType: typeManifest, Config: config, Layers: []descriptor{layer}})
	d.Platform = &platform{Architecture: p.arch, OS: "linux"}
	return d, err
}

func (l *layout) document(mediaType string, v any) (descriptor, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return descriptor{}, err
	}
	return l.blob(mediaType, text)
}

func (l *layout) blob(mediaType string, content []byte) (descriptor, error) {
	d := descriptor{MediaType: mediaType, Digest: digest(content), Size: len(content)}
	return d, add(l.archive, "blobs/sha256/"+d.Digest[len("sha256:"):], content, 0o644, l.at)
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}
