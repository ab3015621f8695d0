package node

import (
	"context"
	"sync"
	"time"

	"grapevine.example/gossip/discovery"
	"grapevine.example/node/accounts"
	"grapevine.example/node/admin"
	"grapevine.example/node/config"
	"grapevine.example/node/metrics"
	"grapevine.example/proxy/clients"
)

const (
	clientsEvery = time.Second
	// clientsSilence is the pause between log lines about the same mistake.
	clientsSilence = time.Minute
)

// clientList follows clients_file. A wrong file leaves the last good one in force.
type clientList struct {
	file   string    // "": everybody may use the router
	logged time.Time // last complaint; the follower's alone

	mu    sync.Mutex
	stamp discovery.Stamp // of the file that was read last, good or wrong
	book  *clients.Book   // in force; nil without a file
	at    time.Time       // of book
	err   error           // of the last read
}

func newClientList(file string) (*clientList, error) {
	l := &clientList{file: file}
	stamp, book, err := l.read()
	return l, l.adopt(stamp, book, err, func(*clients.Book) {})
}

// read returns no clients if there is no file. The stamp is older than the text, so that no change is missed.
func (l *clientList) read() (stamp discovery.Stamp, book *clients.Book, err error) {
	if l.file == "" {
		return stamp, nil, nil
	}
	if stamp, err = discovery.Stat(l.file); err != nil {
		return stamp, nil, &config.Error{Key: "clients_file", Reason: err.Error()}
	}
	book, err = config.ReadClients(l.file)
	return stamp, book, err
}

// adopt takes what read returned, whose error it returns. It passes a new book to apply, in turn with other calls.
func (l *clientList) adopt(stamp discovery.Stamp, book *clients.Book, err error, apply func(*clients.Book)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stamp, l.err = stamp, err; book != nil {
		l.book, l.at = book, time.Now()
		apply(book)
	}
	return err
}

// changed reports whether the file differs from what was read last.
func (l *clientList) changed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	stamp, err := discovery.Stat(l.file)
	return err != nil || stamp != l.stamp
}

func (n *Node) followClients(ctx context.Context) {
	log := n.log.With().Str("component", "clients").Str("file", n.clients.file).Logger()
	tick := time.NewTicker(clientsEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if !n.clients.changed() {
			continue
		}
		_, _, last := n.clients.state()
		stamp, book, err := n.clients.read()
		_ = n.clients.adopt(stamp, book, err, n.useClients)
		switch {
		case err != nil && (last == nil || last.Error() != err.Error() || time.Since(n.clients.logged) >= clientsSilence):
			n.clients.logged = time.Now()
			log.Warn().Str("event", EventClientsRefused).Err(err).Msg("clients file is wrong: the clients that were in force stay")
		case book != nil:
			log.Info().Str("event", EventClientsApplied).Int("clients", len(book.Clients)).Msg("clients file applied")
		}
	}
}

// state returns the clients in force, since when, and what is wrong with the file now.
func (l *clientList) state() (book *clients.Book, at time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.book, l.at, l.err
}

// Clients lists the clients in force, without their keys.
func (n *Node) Clients() *admin.ClientList {
	book, at, err := n.clients.state()
	list := &admin.ClientList{File: n.clients.file, Node: n.name, Clients: []admin.ClientStatus{}}
	if n.Addr() != "" {
		list.UptimeS = tenths(ageS(n.began))
	}
	if book == nil {
		return list
	}
	list.AgeS = time.Since(at).Seconds()
	if err != nil {
		list.Error = err.Error()
	}
	for _, c := range book.Clients {
		use := n.meter.Standing(c, 0, clients.Admitted, n.meter.Now())
		list.Clients = append(list.Clients, admin.ClientStatus{
			Name: c.Name, Keys: len(c.Keys), Anonymous: c == book.Anonymous, Models: c.Models, Paths: c.Paths, Priority: c.Priority.String(),
			Weight: c.Weight, TokensPerMinute: c.TokensPerMinute, InFlight: c.InFlight, Trusted: c.Trusted, TokensUsed: use.TokensUsed, Requests: use.InFlight,
			Here: accountOf(n.accounts.Of(c.Name), use.Refused),
		})
	}
	return list
}

func accountOf(t accounts.Totals, refused [len(clients.Reasons)]uint64) admin.ClientAccount {
	return admin.ClientAccount{
		Requests: t.Requests, Failed: t.Failed, Refused: refused[clients.Tokens] + refused[clients.InFlight],
		PromptTokens: t.Prompt, CachedTokens: t.Cached, OutputTokens: t.Output,
		PrefillS: t.Prefill, DecodeS: t.Decode, SavedS: t.Saved, Cost: t.Cost,
		TTFTP50: t.TTFT.Quantile(0.5), TTFTP90: t.TTFT.Quantile(0.9), SpeedP50: t.Speed.Quantile(0.5),
		Waited: t.Wait.Count(), WaitP50: t.Wait.Quantile(0.5), WaitP90: t.Wait.Quantile(0.9), QueueRefused: t.QueueRefused,
	}
}

// useClients begins to serve the clients of a book.
func (n *Node) useClients(b *clients.Book) {
	n.accounts.Adopt(b) // before their first requests
	n.proxy.SetClients(b)
}

func (n *Node) collectClients(s metrics.Scrape) {
	book, _, err := n.clients.state()
	if book == nil {
		return
	}
	s.Gauge("clients", "Clients of clients_file in force. Not additive.")(float64(len(book.Clients)))
	s.Gauge("clients_failing", "1 while clients_file is wrong or missing: the clients that were in force stay.")(metrics.Bool(err != nil))
	requests := s.Counter("client_requests_total", "Requests of the client that were forwarded.", "client")
	inFlight := s.Gauge("client_requests_in_flight", "Requests of the client being served.", "client")
	refused := s.Counter("client_refused_total", "Requests answered 429 because of the client's limit on tokens or requests in_flight.", "client", "reason")
	for _, c := range book.Clients {
		t := n.meter.Standing(c, 0, clients.Admitted, n.meter.Now()).Totals
		if t.Requests+t.Refused[clients.Tokens]+t.Refused[clients.InFlight] == 0 {
			continue // a file may list thousands
		}
		requests(float64(t.Requests), c.Name)
		inFlight(float64(t.Own), c.Name)
		refused(float64(t.Refused[clients.Tokens]), c.Name, clients.Tokens.String())
		refused(float64(t.Refused[clients.InFlight]), c.Name, clients.InFlight.String())
	}
	n.accounts.Collect(s)
}
