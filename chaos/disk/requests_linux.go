package disk

import (
	"context"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// node is a file or directory below.
type node struct {
	*fs.LoopbackNode
	d *Disk
}

var (
	_ fs.NodeWrapChilder = (*node)(nil)
	_ fs.NodeCreater     = (*node)(nil)
	_ fs.NodeOpener      = (*node)(nil)
)

// WrapChild is called by the library for everything it finds.
func (n *node) WrapChild(_ context.Context, ops fs.InodeEmbedder) fs.InodeEmbedder {
	return &node{ops.(*fs.LoopbackNode), n.d}
}

// Create opens a new file.
func (n *node) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	child, f, fuseFlags, errno := n.LoopbackNode.Create(ctx, name, flags, mode, out)
	return child, n.wrap(f), fuseFlags, errno
}

// Open opens a file.
func (n *node) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	f, fuseFlags, errno := n.LoopbackNode.Open(ctx, flags)
	return n.wrap(f), fuseFlags, errno
}

func (n *node) wrap(f fs.FileHandle) fs.FileHandle {
	if f, ok := f.(*fs.LoopbackFile); ok {
		return &file{f, n.d}
	}
	return f // nil, after an error
}

// file is an open file, which needs room where it grows.
type file struct {
	*fs.LoopbackFile
	d *Disk
}

// Write writes what there is room for.
func (f *file) Write(ctx context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	if !f.room(ctx, off, len(data)) {
		return 0, syscall.ENOSPC
	}
	return f.LoopbackFile.Write(ctx, data, off)
}

// Writev does the same.
func (f *file) Writev(ctx context.Context, data [][]byte, off int64) (uint32, syscall.Errno) {
	n := 0
	for _, b := range data {
		n += len(b)
	}
	if !f.room(ctx, off, n) {
		return 0, syscall.ENOSPC
	}
	return f.LoopbackFile.Writev(ctx, data, off)
}

// Allocate reserves room.
func (f *file) Allocate(ctx context.Context, off, size uint64, mode uint32) syscall.Errno {
	if f.d.state.Load().full {
		return syscall.ENOSPC
	}
	return f.LoopbackFile.Allocate(ctx, off, size, mode)
}

// PassthroughFd keeps the kernel from going to the file below by itself.
func (f *file) PassthroughFd() (int, bool) { return 0, false }

// room says whether so many bytes can be written: always, unless the disk is full, and then where all of them are written already.
func (f *file) room(ctx context.Context, off int64, n int) bool {
	if !f.d.state.Load().full || n == 0 {
		return true
	}
	hole, errno := f.Lseek(ctx, uint64(off), unix.SEEK_HOLE)
	return errno == fs.OK && hole >= uint64(off)+uint64(n)
}

// requests are what the kernel asks for. Each waits for the Disk and is then the library's. Those without an answer (releasing and
// forgetting) do not wait.
type requests struct {
	fuse.RawFileSystem
	d *Disk
}

// light waits for what only reads or names things, heavy for what goes to the platter.
func (r *requests) light() bool { return r.d.wait(false) }
func (r *requests) heavy() bool { return r.d.wait(true) }

// grow waits for what needs room in any case.
func (r *requests) grow() fuse.Status {
	switch {
	case !r.heavy():
		return fuse.EIO
	case r.d.state.Load().full:
		return fuse.Status(syscall.ENOSPC)
	}
	return fuse.OK
}

// The methods below are those of the interface, in its order.

func (r *requests) Lookup(c <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	if !r.light() {
		return fuse.EIO
	}
	return r.RawFileSystem.Lookup(c, h, name, out)
}

func (r *requests) GetAttr(c <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	if !r.light() {
		return fuse.EIO
	}
	return r.RawFileSystem.GetAttr(c, in, out)
}

func (r *requests) SetAttr(c <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	if !r.heavy() {
		return fuse.EIO
	}
	return r.RawFileSystem.SetAttr(c, in, out)
}

func (r *requests) Mknod(c <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	if !r.heavy() {
		return fuse.EIO
	}
	return r.RawFileSystem.Mknod(c, in, name, out)
}

func (r *requests) Mkdir(c <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	if s := r.grow(); s != fuse.OK {
		return s
	}
	return r.RawFileSystem.Mkdir(c, in, name, out)
}

func (r *requests) Unlink(c <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	if !r.heavy() {
		return fuse.EIO
	}
	return r.RawFileSystem.Unlink(c, h, name)
}

func (r *requests) Rmdir(c <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	if !r.heavy() {
		return fuse.EIO
	}
	return r.RawFileSystem.Rmdir(c, h, name)
}

func (r *requests) Rename(c <-chan struct{}, in *fuse.RenameIn, from, to string) fuse.Status {
	if !r.heavy() {
		return fuse.EIO
	}
	return r.RawFileSystem.Rename(c, in, from, to)
}

func (r *requests) Link(c <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	if !r.heavy() {
		return fuse.EIO
	}
	return r.RawFileSystem.Link(c, in, name, out)
}

func (r *requests) Symlink(c <-chan struct{}, h *fuse.InHeader, to, name string, out *fuse.EntryOut) fuse.Status {
	if s := r.grow(); s != fuse.OK {
		return s
	}
	return r.RawFileSystem.Symlink(c, h, to, name, out)
}

func (r *requests) Readlink(c <-chan struct{}, h *fuse.InHeader) ([]byte, fuse.Status) {
	if !r.light() {
		return nil, fuse.EIO
	}
	return r.RawFileSystem.Readlink(c, h)
}

func (r *requests) Access(c <-chan struct{}, in *fuse.AccessIn) fuse.Status {
	if !r.light() {
		return fuse.EIO
	}
	return r.RawFileSystem.Access(c, in)
}

func (r *requests) Create(c <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	if !r.heavy() {
		return fuse.EIO
	}
	return r.RawFileSystem.Create(c, in, name, out)
}

func (r *requests) Tmpfile(<-chan struct{}, *fuse.CreateIn, *fuse.CreateOut) fuse.Status {
	return fuse.ENOSYS // it would hand out a file that knows nothing of the Disk
}

func (r *requests) Open(c <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if !r.light() {
		return fuse.EIO
	}
	return r.RawFileSystem.Open(c, in, out)
}

func (r *requests) Read(c <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	if !r.light() {
		return nil, fuse.EIO
	}
	return r.RawFileSystem.Read(c, in, buf)
}

func (r *requests) Lseek(c <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	if !r.light() {
		return fuse.EIO
	}
	return r.RawFileSystem.Lseek(c, in, out)
}

func (r *requests) Write(c <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	if !r.heavy() {
		return 0, fuse.EIO
	}
	return r.RawFileSystem.Write(c, in, data)
}

func (r *requests) Writev(c <-chan struct{}, in *fuse.WriteIn, data [][]byte) (uint32, fuse.Status) {
	if !r.heavy() {
		return 0, fuse.EIO
	}
	return r.RawFileSystem.Writev(c, in, data)
}

func (r *requests) CopyFileRange(<-chan struct{}, *fuse.CopyFileRangeIn) (uint32, fuse.Status) {
	return 0, fuse.ENOSYS // the kernel reads and writes then
}

func (r *requests) Flush(c <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	if !r.light() {
		return fuse.EIO
	}
	return r.RawFileSystem.Flush(c, in)
}

func (r *requests) Fsync(c <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	if !r.heavy() {
		return fuse.EIO
	}
	return r.RawFileSystem.Fsync(c, in)
}

func (r *requests) Fallocate(c <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	if !r.heavy() {
		return fuse.EIO
	}
	return r.RawFileSystem.Fallocate(c, in)
}

func (r *requests) OpenDir(c <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if !r.light() {
		return fuse.EIO
	}
	return r.RawFileSystem.OpenDir(c, in, out)
}

func (r *requests) ReadDir(c <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	if !r.light() {
		return fuse.EIO
	}
	return r.RawFileSystem.ReadDir(c, in, out)
}

func (r *requests) ReadDirPlus(c <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	if !r.light() {
		return fuse.EIO
	}
	return r.RawFileSystem.ReadDirPlus(c, in, out)
}

func (r *requests) FsyncDir(c <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	if !r.heavy() {
		return fuse.EIO
	}
	return r.RawFileSystem.FsyncDir(c, in)
}

func (r *requests) StatFs(c <-chan struct{}, h *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	if !r.light() {
		return fuse.EIO
	}
	status := r.RawFileSystem.StatFs(c, h, out)
	if r.d.state.Load().full {
		out.Bfree, out.Bavail = 0, 0
	}
	return status
}

func (r *requests) Statx(c <-chan struct{}, in *fuse.StatxIn, out *fuse.StatxOut) fuse.Status {
	if !r.light() {
		return fuse.EIO
	}
	return r.RawFileSystem.Statx(c, in, out)
}
