package raftstore

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

const dataFile = "raft.db"

var (
	bucketMeta     = []byte("meta") // identity and commit index
	bucketLog      = []byte("log")
	bucketStable   = []byte("stable") // term and vote
	bucketSnapshot = []byte("snapshot")
)

func damaged(path string, why error) error {
	return fmt.Errorf("%s is damaged: %w; if other nodes have the fleet's state: empty the data directory and start this node with join; else restore the file from a backup",
		path, why)
}

func seal(b *bbolt.Bucket, key, value []byte) error {
	return b.Put(key, binary.BigEndian.AppendUint32(bytes.Clone(value), logSum(key, value)))
}

// unseal copies a sealed value; nil means none.
func unseal(b *bbolt.Bucket, key []byte) ([]byte, error) {
	raw := b.Get(key)
	if raw == nil {
		return nil, nil
	}
	at := max(0, len(raw)-crc32.Size)
	if len(raw) < crc32.Size || logSum(key, raw[:at]) != binary.BigEndian.Uint32(raw[at:]) {
		return nil, fmt.Errorf("%s is damaged: the checksum differs", key)
	}
	return bytes.Clone(raw[:at]), nil
}

func openBolt(path string, readOnly bool) (*bbolt.DB, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{
		Timeout:      500 * time.Millisecond,
		FreelistType: bbolt.FreelistMapType,
		// A growing map would wait for readers; log and snapshot fit in 16 MiB.
		InitialMmapSize: 16 << 20,
		ReadOnly:        readOnly,
	})
	if err == nil {
		return db, nil
	}
	_, file := errors.AsType[*fs.PathError](err)
	_, system := errors.AsType[syscall.Errno](err)
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return nil, fmt.Errorf("%s is in use by another process", path)
	case file || system:
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return nil, damaged(path, err)
}

// ensureData names a new file only when it is complete, so an incomplete file is damaged and never
// a new node's.
func ensureData(dir, path string) error {
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	unfinished := path + ".new"
	if err := os.Remove(unfinished); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := makeData(unfinished, path); err != nil {
		return errors.Join(fmt.Errorf("make %s: %w", path, err), os.Remove(unfinished))
	}
	return syncDir(dir)
}

func makeData(unfinished, path string) error {
	db, err := openBolt(unfinished, false)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(identity{ID: newID()})
	if err == nil {
		err = db.Update(func(tx *bbolt.Tx) error {
			for _, name := range [][]byte{bucketMeta, bucketLog, bucketStable, bucketSnapshot} {
				if _, err := tx.CreateBucket(name); err != nil {
					return err
				}
			}
			return seal(tx.Bucket(bucketMeta), keyIdentity, raw)
		})
	}
	if err := errors.Join(err, db.Close()); err != nil {
		return err
	}
	return os.Rename(unfinished, path)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// checkData finds the damaged pages over which bbolt would fault or loop forever.
func checkData(path string) error {
	if info, err := os.Stat(path); err == nil && info.Size() == 0 {
		return damaged(path, errors.New("it is empty"))
	}
	db, err := openBolt(path, true) // holds the lock meanwhile
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	c := &pageCheck{file: f, fileSize: info.Size(), pageSize: int64(db.Info().PageSize), used: make(map[uint64]bool)}
	if err := c.run(); err != nil {
		return damaged(path, err)
	}
	return nil
}

// pageCheck walks the pages of a bbolt file (format 2) that its newest transaction uses. Integers
// are in the machine's byte order:
//
//	page    id 8 bytes, flags 2, count of elements 2, further pages 4; elements; their keys and values
//	branch  element: offset of the key from the element 4, its length 4, page 8
//	leaf    element: flags 4, offset of the key from the element 4, its length 4, length of the value behind it 4
//	bucket  value of a leaf element with flag 1: page 8, or 0 and the page follows in the value; sequence 8
type pageCheck struct {
	file               io.ReaderAt
	fileSize, pageSize int64
	end                uint64
	used               map[uint64]bool
}

const (
	pageHead     = 16
	elementSize  = 16
	flagBranch   = 1
	flagLeaf     = 2
	flagFreelist = 16
	bucketHead   = 16
	maxDepth     = 32 // a terabyte needs fewer levels
	noFreelist   = ^uint64(0)
)

var order = binary.NativeEndian

func (c *pageCheck) run() error {
	root, freelist, err := c.newestMeta()
	if err != nil {
		return err
	}
	found := make(map[string]bool)
	err = c.tree(root, 0, &keyOrder{}, func(key, value []byte, isBucket bool) error {
		found[string(key)] = true
		if !isBucket {
			return fmt.Errorf("%q is not a bucket", key)
		}
		return c.bucket(string(key), value)
	})
	if err != nil {
		return err
	}
	for _, name := range [][]byte{bucketMeta, bucketLog, bucketStable, bucketSnapshot} {
		if !found[string(name)] {
			return fmt.Errorf("it has no bucket %q", name)
		}
	}
	if len(found) > 4 {
		return errors.New("it has buckets of unknown names")
	}
	if freelist == noFreelist {
		return nil
	}
	return c.freelist(freelist)
}

func (c *pageCheck) newestMeta() (root, freelist uint64, err error) {
	const metaSize, magic, version = 64, 0xED0CDAED, 2
	newest, found := uint64(0), false
	for id := range int64(2) {
		b := make([]byte, metaSize)
		if _, err := c.file.ReadAt(b, id*c.pageSize+pageHead); err != nil {
			return 0, 0, err
		}
		sum := fnv.New64a()
		sum.Write(b[:56])
		txid := order.Uint64(b[48:])
		if order.Uint32(b) != magic || order.Uint32(b[4:]) != version || order.Uint64(b[56:]) != sum.Sum64() || found && txid < newest {
			continue
		}
		newest, found = txid, true
		root, freelist, c.end = order.Uint64(b[16:]), order.Uint64(b[32:]), order.Uint64(b[40:])
	}
	if !found {
		return 0, 0, errors.New("neither of its first two pages is valid")
	}
	return root, freelist, nil
}

// page marks a page and its continuations as used.
func (c *pageCheck) page(id uint64) (b []byte, flags uint16, err error) {
	var head [pageHead]byte
	if id < 2 || id >= c.end {
		return nil, 0, fmt.Errorf("page %d is out of range", id)
	}
	if _, err := c.file.ReadAt(head[:], int64(id)*c.pageSize); err != nil {
		return nil, 0, fmt.Errorf("page %d: %w", id, err)
	}
	pages := 1 + uint64(order.Uint32(head[12:]))
	if order.Uint64(head[:]) != id || pages > c.end-id {
		return nil, 0, fmt.Errorf("page %d has the head of another", id)
	}
	for i := id; i < id+pages; i++ {
		if c.used[i] {
			return nil, 0, fmt.Errorf("page %d is used twice", i)
		}
		c.used[i] = true
	}
	if int64(id+pages)*c.pageSize > c.fileSize {
		return nil, 0, fmt.Errorf("page %d is beyond the end of the file", id)
	}
	b = make([]byte, int64(pages)*c.pageSize)
	if _, err := c.file.ReadAt(b, int64(id)*c.pageSize); err != nil {
		return nil, 0, fmt.Errorf("page %d: %w", id, err)
	}
	return b, order.Uint16(head[8:]), nil
}

// keyOrder checks that leaf keys rise from their branch's key.
type keyOrder struct{ last, least []byte }

func (o *keyOrder) branch(key []byte) bool {
	o.least = key
	return o.last == nil || bytes.Compare(key, o.last) > 0
}

func (o *keyOrder) leaf(key []byte) bool {
	ok := bytes.Compare(key, o.least) >= 0 && (o.last == nil || bytes.Compare(key, o.last) > 0)
	o.last = key
	return ok
}

type visitLeaf func(key, value []byte, isBucket bool) error

func (c *pageCheck) tree(id uint64, depth int, keys *keyOrder, visit visitLeaf) error {
	b, flags, err := c.page(id)
	switch {
	case err != nil:
		return err
	case depth > maxDepth:
		return fmt.Errorf("page %d is too deep", id)
	case flags == flagLeaf:
		return leaf(id, b, keys, visit)
	case flags != flagBranch:
		return fmt.Errorf("page %d has the unknown flags %#x", id, flags)
	}
	count := int(order.Uint16(b[10:]))
	if count == 0 || pageHead+count*elementSize > len(b) {
		return fmt.Errorf("page %d is a branch of %d elements", id, count)
	}
	for i := range count {
		at := pageHead + i*elementSize
		key, ok := span(b, uint64(at)+uint64(order.Uint32(b[at:])), order.Uint32(b[at+4:]))
		if !ok || !keys.branch(key) {
			return fmt.Errorf("element %d of page %d is damaged", i, id)
		}
		if err := c.tree(order.Uint64(b[at+8:]), depth+1, keys, visit); err != nil {
			return err
		}
	}
	return nil
}

func leaf(id uint64, b []byte, keys *keyOrder, visit visitLeaf) error {
	count := int(order.Uint16(b[10:]))
	if pageHead+count*elementSize > len(b) {
		return fmt.Errorf("page %d is a leaf of %d elements", id, count)
	}
	for i := range count {
		at := pageHead + i*elementSize
		flags, pos := order.Uint32(b[at:]), uint64(at)+uint64(order.Uint32(b[at+4:]))
		key, ok := span(b, pos, order.Uint32(b[at+8:]))
		value, whole := span(b, pos+uint64(len(key)), order.Uint32(b[at+12:]))
		if !ok || !whole || flags > 1 || !keys.leaf(key) {
			return fmt.Errorf("element %d of page %d is damaged", i, id)
		}
		if err := visit(key, value, flags == 1); err != nil {
			return err
		}
	}
	return nil
}

func span(b []byte, from uint64, size uint32) ([]byte, bool) {
	if from+uint64(size) > uint64(len(b)) {
		return nil, false
	}
	return b[from : from+uint64(size)], true
}

// knownKeys are the valid keys per bucket; the log has indexes. An unknown key is a damaged vote or
// snapshot, which would seem never written.
var knownKeys = map[string][]string{
	"meta":     {string(keyIdentity), string(keyApplied)},
	"stable":   {string(keyTerm), "LastVoteTerm", "LastVoteCand"}, // from raft
	"snapshot": {string(keySnapshotMeta), string(keySnapshotData)},
}

func (c *pageCheck) bucket(name string, value []byte) error {
	plain := func(key, _ []byte, isBucket bool) error {
		known := slices.Contains(knownKeys[name], string(key)) || name == string(bucketLog) && len(key) == 8
		if isBucket || !known {
			return fmt.Errorf("bucket %q has the unknown key %q", name, key)
		}
		return nil
	}
	if len(value) < bucketHead {
		return errors.New("the head of a bucket is too short")
	}
	root := order.Uint64(value)
	if root != 0 {
		return c.tree(root, 0, &keyOrder{}, plain)
	}
	inside := value[bucketHead:]
	if len(inside) < pageHead || order.Uint16(inside[8:]) != flagLeaf {
		return errors.New("a bucket has no page")
	}
	return leaf(0, inside, &keyOrder{}, plain)
}

// freelist checks that no used page counts as free, because bbolt would overwrite it.
func (c *pageCheck) freelist(id uint64) error {
	b, flags, err := c.page(id)
	if err != nil {
		return err
	}
	const long = 0xFFFF // then the first id holds the count
	count, ids := uint64(order.Uint16(b[10:])), b[pageHead:]
	if count == long {
		count, ids = order.Uint64(ids), ids[8:]
	}
	if flags != flagFreelist || count > uint64(len(ids)/8) {
		return fmt.Errorf("page %d is not a list of free pages", id)
	}
	for i := range count {
		free := order.Uint64(ids[8*i:])
		if free < 2 || free >= c.end || c.used[free] {
			return fmt.Errorf("page %d is in use, or out of range, and counts as free", free)
		}
		c.used[free] = true
	}
	return nil
}
