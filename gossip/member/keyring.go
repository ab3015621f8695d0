package member

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/hashicorp/memberlist"
)

const (
	maxKeys        = 8        // two for a rotation, and abandoned ones
	maxKeyringFile = 64 << 10 // bytes: eight keys and comments
)

// Errors of ring operations. RotateKey returns them as text when another node reports them.
var (
	errNoRing     = errors.New("this node runs without gossip keys: start the fleet with a key first")
	errNoSuchKey  = errors.New("the key is not on the ring: install it first")
	errRemovedKey = errors.New("the key under which this stream was opened has been removed")
	errPrimaryKey = errors.New("the key is in use: use another one first")
	errFullRing   = fmt.Errorf("the ring holds %d keys already: remove one first", maxKeys)
)

// ring changes the file first, so that a restart never returns to an older ring.
type ring struct {
	name string
	file string

	mu       sync.Mutex
	packets  *memberlist.Keyring // nil without keys
	identity atomic.Pointer[identity]
}

func newRing(name string, keys [][]byte, file string) (*ring, error) {
	r := &ring{name: name, file: file}
	if file != "" {
		if len(keys) > 0 {
			return nil, errors.New("gossip keys and a keyring file: give one of both")
		}
		var err error
		if keys, err = readKeyring(file); err != nil {
			return nil, err
		}
	}
	if err := checkKeys(keys); err != nil {
		return nil, err
	}
	keys = slices.Clone(keys)
	for i, k := range keys {
		keys[i] = bytes.Clone(k)
	}
	id, err := newIdentity(name, keys)
	if err != nil {
		return nil, err
	}
	r.identity.Store(id)
	if len(keys) > 0 {
		if r.packets, err = memberlist.NewKeyring(keys, keys[0]); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func checkKeys(keys [][]byte) error {
	if len(keys) > maxKeys {
		return fmt.Errorf("%d gossip keys, more than %d", len(keys), maxKeys)
	}
	for i, k := range keys {
		if err := checkKey(k); err != nil {
			return fmt.Errorf("gossip key %d: %w", i+1, err)
		}
		for _, other := range keys[:i] {
			if bytes.Equal(k, other) {
				return fmt.Errorf("gossip key %d is given twice", i+1)
			}
		}
	}
	return nil
}

func checkKey(key []byte) error {
	if n := len(key); n != 16 && n != 24 && n != 32 {
		return fmt.Errorf("%d bytes long: a key has 16, 24 or 32 bytes; `grapevine keys generate` makes one", n)
	}
	return nil
}

// change acts for the holder of key under (zero: this node) and fails once that key is off the
// ring. Operations may be repeated; if the file cannot be written, nothing changes.
func (r *ring) change(op KeyOp, key []byte, which, under Fingerprint) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.packets == nil {
		return errNoRing
	}
	old := r.identity.Load()
	if under != (Fingerprint{}) && old.roots[under] == nil {
		return errRemovedKey
	}
	keys, at := slices.Clone(old.keys), slices.Index(old.prints, which)
	switch {
	case op == KeyInstall && at < 0 && len(keys) >= maxKeys:
		return errFullRing
	case op == KeyInstall && at < 0:
		keys = append(keys, bytes.Clone(key))
	case op == KeyUse && at < 0:
		return errNoSuchKey
	case op == KeyUse && at > 0:
		keys = slices.Insert(slices.Delete(keys, at, at+1), 0, old.keys[at])
	case op == KeyRemove && at == 0:
		return errPrimaryKey
	case op == KeyRemove && at > 0:
		keys = slices.Delete(keys, at, at+1)
	default:
		return nil
	}
	id, err := newIdentity(r.name, keys)
	if err != nil {
		return err
	}
	if r.file != "" {
		if err := writeKeyring(r.file, keys); err != nil {
			return fmt.Errorf("the keyring file cannot be written, so the change would not outlast a restart: %w", err)
		}
	}
	if err := r.movePackets(keys); err != nil {
		return err
	}
	r.identity.Store(id)
	return nil
}

// RemoveKey shifts keys in an array that receivers may be reading, so keys are removed from the end
// and added again; gossip tolerates packets lost meanwhile.
func (r *ring) movePackets(keys [][]byte) error {
	for _, k := range keys {
		if err := r.packets.AddKey(k); err != nil {
			return err
		}
	}
	if err := r.packets.UseKey(keys[0]); err != nil {
		return err
	}
	on := slices.Clone(r.packets.GetKeys())
	gone := slices.IndexFunc(on, func(k []byte) bool {
		return !slices.ContainsFunc(keys, func(want []byte) bool { return bytes.Equal(k, want) })
	})
	if gone < 0 {
		return nil
	}
	for i := len(on) - 1; i >= gone; i-- {
		if err := r.packets.RemoveKey(on[i]); err != nil {
			return err
		}
	}
	for _, k := range keys {
		if err := r.packets.AddKey(k); err != nil {
			return err
		}
	}
	return nil
}

func readKeyring(path string) ([][]byte, error) {
	text, err := ReadSecret(path, maxKeyringFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("gossip keys: %w (`grapevine keys generate` makes one)", err)
	case err != nil:
		return nil, fmt.Errorf("gossip keys: %w", err)
	}
	keys, err := ParseKeys(text)
	if err != nil {
		return nil, fmt.Errorf("gossip keys: %s: %w", path, err)
	}
	return keys, nil
}

// ParseKeys reads either form of Config.KeyringFile; errors never contain a key.
func ParseKeys(text []byte) ([][]byte, error) {
	var lines []string
	if text = bytes.TrimSpace(text); bytes.HasPrefix(text, []byte("[")) {
		if err := json.Unmarshal(text, &lines); err != nil {
			return nil, errors.New("not a JSON list of base64 keys")
		}
	} else {
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				lines = append(lines, line)
			}
		}
	}
	if len(lines) == 0 {
		return nil, errors.New("no key in it")
	}
	if len(lines) > maxKeys {
		return nil, fmt.Errorf("%d keys, more than %d", len(lines), maxKeys)
	}
	keys := make([][]byte, len(lines))
	for i, line := range lines {
		key, err := base64.StdEncoding.DecodeString(line)
		if err != nil {
			return nil, fmt.Errorf("key %d is not base64", i+1)
		}
		keys[i] = key
	}
	return keys, checkKeys(keys)
}

// The replacement is atomic.
func writeKeyring(path string, keys [][]byte) error {
	lines := make([]string, len(keys))
	for i, k := range keys {
		lines[i] = base64.StdEncoding.EncodeToString(k)
	}
	text, err := json.MarshalIndent(lines, "", "  ")
	if err != nil {
		return err
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	dir := filepath.Dir(path)
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(append(text, '\n'))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	// Without it a crash might restore the old file. Not every file system supports it.
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return nil
}
