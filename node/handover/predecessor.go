package handover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"
)

// variable names the descriptor of the connection to the predecessor; its sockets follow.
const variable = "GRAPEVINE_PREDECESSOR_FD"

// helloWithin: the old process has sent its hello before this one runs.
const helloWithin = 10 * time.Second

// Predecessor is the process that started this one to be replaced by it. Use it in the order of its
// methods.
type Predecessor struct {
	conn
	Hello     Hello
	listeners map[Socket]net.Listener
	exited    chan struct{}
}

// FromEnvironment returns nil if no router started this process. Call it once, before opening files.
func FromEnvironment() (*Predecessor, error) {
	text, ok := os.LookupEnv(variable)
	if !ok {
		return nil, nil
	}
	if err := os.Unsetenv(variable); err != nil {
		return nil, err
	}
	fd, err := strconv.Atoi(text)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("%s is %q: it is for the router's own use", variable, text)
	}
	file := os.NewFile(uintptr(fd), variable)
	c, err := net.FileConn(file)
	_ = file.Close() // c holds a copy
	if err != nil {
		return nil, fmt.Errorf("%s: %w", variable, err)
	}
	p := &Predecessor{conn: newConn(c), listeners: make(map[Socket]net.Listener), exited: make(chan struct{})}
	ctx, cancel := context.WithTimeout(context.Background(), helloWithin)
	defer cancel()
	m, err := p.receive(ctx, hello)
	if err == nil && (m.Hello == nil || m.Hello.Version != Version) {
		err = fmt.Errorf("the running router hands over by another version of the messages than %d: restart it instead", Version)
	}
	if err != nil {
		return nil, p.Fail(err)
	}
	p.Hello = *m.Hello
	for i, s := range p.Hello.Sockets {
		file := os.NewFile(uintptr(fd+1+i), s.Setting)
		ln, err := net.FileListener(file)
		_ = file.Close()
		if err != nil {
			return nil, p.Fail(fmt.Errorf("the running router's socket of %s: %w", s.Setting, err))
		}
		p.listeners[s] = ln
	}
	return p, nil
}

// Listener returns the socket that listens by a setting of this value, or nil. The caller closes it.
func (p *Predecessor) Listener(setting, address string) net.Listener {
	s := Socket{setting, address}
	ln := p.listeners[s]
	delete(p.listeners, s)
	return ln
}

// Fail tells the predecessor why this process gives up, so that it goes on. It returns err.
func (p *Predecessor) Fail(err error) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return errors.Join(err, p.send(ctx, message{Step: failed, Text: err.Error()}), p.Close())
}

// Built says that this process accepts its configuration, and yields the predecessor's knowledge. It
// returns when the predecessor has released what only one process may own.
func (p *Predecessor) Built(ctx context.Context, version string, take func(*Page)) error {
	for s, ln := range p.listeners { // of settings that have changed
		_ = ln.Close()
		delete(p.listeners, s)
	}
	if err := p.send(ctx, message{Step: built, Text: version}); err != nil {
		return err
	}
	for {
		m, err := p.receive(ctx, page, pagesEnd)
		if err != nil {
			return err
		}
		if m.Step == pagesEnd {
			break
		}
		if m.Page != nil {
			take(m.Page)
		}
	}
	m, err := p.receive(ctx, released)
	if err == nil && m.Page != nil {
		take(m.Page)
	}
	return err
}

// Serving says that this process serves, and returns when the service manager knows it. From then on take gets
// the predecessor's pages of usage, and nil when it has exited.
func (p *Predecessor) Serving(ctx context.Context, take func(*Page)) error {
	if err := p.send(ctx, message{Step: serving}); err != nil {
		return err
	}
	if _, err := p.receive(ctx, yours); err != nil {
		return err
	}
	go func() {
		defer close(p.exited)
		p.take(context.Background(), take)
		p.ended(context.Background()) // a later release may say more
		take(nil)
	}()
	return nil
}

// Give sends a page of usage, after Serving. A predecessor of an earlier release reads none: then it waits for ctx, or for the
// predecessor's end.
func (p *Predecessor) Give(ctx context.Context, usage *Page) error {
	return p.send(ctx, message{Step: page, Page: usage})
}

// AwaitEnd waits until the predecessor has exited, or ctx ends.
func (p *Predecessor) AwaitEnd(ctx context.Context) {
	if p == nil {
		return
	}
	select {
	case <-p.exited:
	case <-ctx.Done():
	}
}
