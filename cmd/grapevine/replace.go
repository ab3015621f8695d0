package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"time"

	"grapevine.example/cmd/commandline"
	"grapevine.example/node/config"
	"grapevine.example/node/handover"
)

// replacement is a process that is to replace this one; nil: there is none.
type replacement struct {
	cancel context.CancelFunc
	done   chan error    // capacity 1
	gone   chan struct{} // closed when nothing of it runs any more
}

// replace starts the installed program in this one's place.
func (r *router) replace() *replacement {
	ctx, cancel := context.WithCancel(context.Background())
	next := &replacement{cancel, make(chan error, 1), make(chan struct{})}
	go func() {
		defer close(next.gone)
		defer cancel()
		next.done <- r.handOver(ctx)
	}()
	return next
}

// ended delivers nil once the new process serves.
func (next *replacement) ended() <-chan error {
	if next == nil {
		return nil
	}
	return next.done
}

// callOff returns when nothing of the replacement runs any more.
func (next *replacement) callOff() {
	if next != nil {
		next.cancel()
		<-next.gone
	}
}

func (r *router) handOver(ctx context.Context) error {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return errors.New("no service manager listens (NOTIFY_SOCKET is not set), so what started this process would take its end for that of the router: restart the router instead")
	}
	// The file by which this program was called: an upgrade puts another one there.
	path, err := exec.LookPath(os.Args[0])
	if err != nil {
		return err
	}
	launch := func(ctx context.Context, hello handover.Hello, listeners []net.Listener) (*handover.Successor, error) {
		return handover.Start(ctx, path, os.Args, os.Environ(), hello, listeners)
	}
	return r.node.HandOver(ctx, launch, r.super.handOver)
}

// inherit takes the predecessor's sockets whose settings are still the same, and its random secret.
func inherit(cfg *config.Config, from *handover.Predecessor) config.Inherited {
	in := config.Inherited{
		Data: from.Listener("listen", ""), Admin: from.Listener("admin", cfg.Admin), Metrics: from.Listener("metrics_listen", cfg.MetricsListen),
		TakesOver: true, RandomSecret: from.Hello.Secret,
	}
	if in.SocketUnit = in.Data != nil; !in.SocketUnit {
		in.Data = from.Listener("listen", cfg.Listen)
	}
	return in
}

// takeOver starts this process's node in place of the predecessor's.
func (r *router) takeOver(signals <-chan os.Signal) error {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	started := make(chan struct{})
	defer close(started)
	go func() {
		select {
		case s := <-signals:
			cancel(fmt.Errorf("signal %v", s))
		case <-started:
		}
	}()
	var mistakes error
	err := r.from.Built(ctx, commandline.Version(), func(p *handover.Page) {
		if err := r.node.Inherit(p); err != nil {
			mistakes = err
		}
	})
	if err != nil {
		return err
	}
	if mistakes != nil {
		r.log.Warn().Err(mistakes).Msg("part of the running process's knowledge cannot be read: caches are learned anew")
	}
	if err := r.node.Start(ctx); err != nil {
		return err
	}
	used := func(p *handover.Page) {
		if p == nil {
			r.node.PredecessorEnded()
		} else if err := r.node.Inherit(p); err != nil {
			r.log.Warn().Err(err).Msg("what the former process's requests use cannot be read")
		}
	}
	if err := r.from.Serving(ctx, used); err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second) // the predecessor serves on
		defer cancel()
		return errors.Join(err, r.node.Stop(ctx))
	}
	r.node.ReportTo(r.from.Give)
	return nil
}
