package disk

import (
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// fusePath is where the kernel hands requests to whoever serves a file system.
const fusePath = "/dev/fuse"

// mounted is what serves a Disk.
type mounted struct {
	dir  string
	on   func(func() error) error
	done chan struct{} // closed when the server has ended
}

// Available returns nil if this process may serve file systems, which also needs the rights to mount them; else why not.
func Available() error {
	f, err := os.OpenFile(fusePath, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("disk: no file systems: %w", err)
	}
	return f.Close()
}

// Mount shows the directory dir, an absolute path, through a Disk to what runs on one thread and to the processes that are started from
// it. on runs a function on that thread, which must be locked to its goroutine and end with it: it leaves the mounts of the other
// threads for good. This process must not map files of the Disk into its memory: a page that it waits for it must deliver itself, and it stands still.
func Mount(dir string, on func(func() error) error) (*Disk, error) {
	root, err := fs.NewLoopbackRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("disk: %w", err)
	}
	fd, err := unix.Open(fusePath, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("disk: open %s: %w", fusePath, err)
	}
	if err := on(func() error { return mount(dir, fd) }); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	d := &Disk{mounted: mounted{dir: dir, on: on, done: make(chan struct{})}}
	d.state.Store(state{}.fresh())
	raw := &requests{fs.NewNodeFS(&node{root.(*fs.LoopbackNode), d}, &fs.Options{}), d}
	// The library calls the kernel's silence at the end an error worth a line in the log, and what it splices with it keeps open for good.
	options := &fuse.MountOptions{MaxWrite: 128 << 10, MaxBackground: 64, DisableSplice: true, Logger: log.New(io.Discard, "", 0)}
	server, err := fuse.NewServer(raw, fmt.Sprintf("/dev/fd/%d", fd), options)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("disk: %w", err), on(func() error { return unmount(dir) }))
	}
	go func() {
		defer close(d.done)
		server.Serve()
	}()
	if err := on(func() error { return refusePolls(dir) }); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// refusePolls has the kernel find out that files here cannot be polled, which it remembers. Programs in Go ask for every file they open,
// in a call that their scheduler does not expect to wait: one that came while the disk hangs would stop all of the program.
func refusePolls(dir string) error {
	// The library answers for this name itself.
	fd, err := unix.Open(filepath.Join(dir, ".go-fuse-epoll-hack"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("disk: %w", err)
	}
	_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return fmt.Errorf("disk: poll: %w", err)
	}
	return nil
}

// mount gives the calling thread mounts of its own and puts the file system behind fd over dir.
func mount(dir string, fd int) error {
	// A thread has its own mounts only with its own working directory.
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("disk: mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("disk: private mounts: %w", err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d", fd, os.Getuid(), os.Getgid())
	if err := unix.Mount("grapevine", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("disk: mount over %s: %w", dir, err)
	}
	return nil
}

// unmount ends all requests with an error and takes the file system away.
func unmount(dir string) error {
	if err := unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH); err != nil {
		return fmt.Errorf("disk: unmount %s: %w", dir, err)
	}
	return nil
}

// Close takes the file system away and returns when nothing serves it any more. What still uses it sees errors.
func (d *Disk) Close() error {
	select {
	case <-d.done:
		return nil
	default:
	}
	d.Heal()
	if err := d.on(func() error { return unmount(d.dir) }); err != nil {
		return err
	}
	<-d.done
	return nil
}
