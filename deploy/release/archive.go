package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// writeTarball packs the tree below dir in the order of names, owned by root.
func writeTarball(file, dir string, at time.Time) (err error) {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	zipped, err := gzip.NewWriterLevel(f, gzip.BestCompression)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(zipped)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return archive.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755, ModTime: at, Format: tar.FormatPAX})
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return add(archive, name, text, int64(info.Mode().Perm()), at)
	})
	return errors.Join(err, archive.Close(), zipped.Close())
}

func add(archive *tar.Writer, name string, content []byte, mode int64, at time.Time) error {
	header := tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(content)), Mode: mode, ModTime: at, Format: tar.FormatPAX}
	if err := archive.WriteHeader(&header); err != nil {
		return err
	}
	_, err := archive.Write(content)
	return err
}

// writeSums writes SHA256SUMS for files of a directory, as sha256sum -c reads it, and returns its path.
func writeSums(dir string, files []string) (string, error) {
	slices.Sort(files)
	var b strings.Builder
	for _, name := range files {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return "", err
		}
		hash := sha256.New()
		_, err = io.Copy(hash, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "%s  %s\n", hex.EncodeToString(hash.Sum(nil)), name)
	}
	path := filepath.Join(dir, "SHA256SUMS")
	return path, os.WriteFile(path, []byte(b.String()), 0o644)
}

// namespace separates these signatures from others of the same key.
const namespace = "grapevine-release"

// sign writes the signature of a file beside it, as FILE.sig, and checks it.
func sign(file, key string) error {
	if err := call(nil, "ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", namespace, file); err != nil {
		return fmt.Errorf("%s is not signed: %w", file, err)
	}
	text, err := os.Open(file)
	if err != nil {
		return err
	}
	defer text.Close()
	check := exec.Command("ssh-keygen", "-q", "-Y", "check-novalidate", "-n", namespace, "-s", file+".sig")
	check.Stdin, check.Stderr = text, os.Stderr
	if err := check.Run(); err != nil {
		return fmt.Errorf("%s.sig is no signature of %s: %w", file, file, err)
	}
	return nil
}
