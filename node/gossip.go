package node

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"grapevine.example/gossip"
	"grapevine.example/gossip/member"
)

const joinPoll = 20 * time.Millisecond

// nameWait covers failure detection of the node's former process (3 to 4 s, more in large fleets),
// release of its name (5 s) and the next join attempt (5 s).
const defaultNameWait = 20 * time.Second

// ErrRefused: the fleet refuses this node or its data directory.
var ErrRefused = errors.New("the fleet does not take this node")

// gossipConfig contains the listeners' addresses only once they are bound.
func (n *Node) gossipConfig() (gossip.Config, error) {
	c := &n.cfg
	tlsConfig, err := n.gossipTLS()
	if err != nil {
		return gossip.Config{}, err
	}
	self := member.Info{
		Name: n.name, Data: n.Addr(), Admin: n.AdminAddr(), Version: c.Version, Cluster: c.Cluster,
		KeyID: n.hasher.KeyID(), BlockBytes: uint32(n.hasher.BlockBytes()), NoEvents: n.streams.Idle(),
	}
	return gossip.Config{
		Member: member.Config{
			Self: self,
			Bind: c.GossipAddr(), Advertise: c.GossipAdvertise, Join: c.Seeds(),
			KeyringFile: c.GossipKeyFile, TLS: tlsConfig, Insecure: c.GossipInsecure,
			Log: n.log.With().Str("component", "member").Logger(),
		},
		Knowledge: n.knowledge, SnapshotDeadline: c.WarmDeadline, Budget: int64(c.GossipBudget),
		Log: n.log.With().Str("component", "gossip").Logger(),
	}, nil
}

// gossipTLS verifies streams by the operator's certificates; nil leaves that to the key ring. Each
// stream reads the short-lived certificate again; on failure the last good one serves.
func (n *Node) gossipTLS() (*tls.Config, error) {
	c := &n.cfg
	if c.GossipCert == "" {
		return nil, nil
	}
	first, err := loadKeyPair(c.GossipCert, c.GossipCertKey)
	if err != nil {
		return nil, fmt.Errorf("gossip_cert: %w", err)
	}
	pem, err := os.ReadFile(c.GossipCA)
	if err != nil {
		return nil, fmt.Errorf("gossip_ca: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("gossip_ca: %s holds no certificate", c.GossipCA)
	}
	n.noteCertificate("gossip_cert", first, n.gossipCert.Swap(first))
	return &tls.Config{
		RootCAs: roots, ClientCAs: roots,
		GetCertificate:       func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return n.currentGossipCert(), nil },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return n.currentGossipCert(), nil },
	}, nil
}

// currentGossipCert reads the files again, and notes what the next stream shows. Only with gossip_cert.
func (n *Node) currentGossipCert() *tls.Certificate {
	cert, err := loadKeyPair(n.cfg.GossipCert, n.cfg.GossipCertKey)
	if err != nil {
		n.log.Error().Str("component", "gossip").Err(err).Msg("gossip_cert cannot be read again: the last one stays in use")
		return n.gossipCert.Load()
	}
	n.noteCertificate("gossip_cert", cert, n.gossipCert.Swap(cert))
	return cert
}

// checkGossip reports wrong keys, certificates and names before anything runs.
func (n *Node) checkGossip() error {
	cfg, err := n.gossipConfig()
	if err != nil {
		return err
	}
	_, err = gossip.New(cfg)
	return err
}

// startGossip returns when the first seeds have answered or failed, so that a refused node fails
// here.
func (n *Node) startGossip(ctx context.Context) error {
	if n.knowledge == nil {
		return nil
	}
	if err := n.mesh.Start(ctx); err != nil {
		return err
	}
	n.single.push("gossip", n.mesh.Stop)
	n.gossip.Store(n.mesh)
	return n.awaitSeeds(ctx, n.mesh.Members())
}

// reporterSilence is several gossip pings. Health reports of peers silent for longer do not count.
const reporterSilence = 3 * time.Second

func (n *Node) heardNodes() []string {
	return n.heard(func(*member.Info) bool { return true })
}

// followingNodes are the peers that follow engines' cache events.
func (n *Node) followingNodes() []string {
	return n.heard(func(peer *member.Info) bool { return !peer.NoEvents })
}

func (n *Node) heard(ok func(*member.Info) bool) (names []string) {
	g := n.gossip.Load()
	if g == nil {
		return nil
	}
	for _, p := range g.Peers() {
		if p.State == member.StateAlive && p.Connected && time.Since(p.LastHeard) < reporterSilence && ok(&p.Info) {
			names = append(names, p.Name)
		}
	}
	return names
}

func (n *Node) touch() {
	if g := n.gossip.Load(); g != nil {
		g.Touch()
	}
}

// awaitSeeds judges the first answers. A taken name or raft id may be this node's former process at
// another address, so awaitSeeds waits for its release.
func (n *Node) awaitSeeds(ctx context.Context, members *member.List) error {
	answers, name := time.Now().Add(n.cfg.WarmDeadline), time.Now().Add(n.nameWait)
	poll := time.NewTicker(joinPoll)
	defer poll.Stop()
	for {
		taken, refused, unreachable := judgeSeeds(members)
		switch {
		case taken:
			return nil
		case refused != nil && (!nameTaken(refused) || time.Now().After(name)):
			return fmt.Errorf("%w: %w", ErrRefused, refused)
		case refused != nil:
			n.ready.wait(because(refused.Error()))
		case !members.Joined() && time.Now().Before(answers):
			n.ready.wait(because("looking for the other nodes"))
		default:
			if unreachable != nil {
				n.log.Warn().Str("component", "node").Err(unreachable).Msg("no other node reached yet: serving alone, still trying")
			}
			return nil
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return fmt.Errorf("gossip: %w", ctx.Err())
		}
	}
}

// judgeSeeds reports whether a member took this node, else why not.
func judgeSeeds(members *member.List) (taken bool, refused, unreachable error) {
	if alive(members) > 0 {
		return true, nil, nil // other errors are in the log and /nodes
	}
	for _, seed := range members.JoinErrors() {
		if isRefusal(seed.Err) {
			refused = cmp.Or(refused, seed.Err)
		} else {
			unreachable = cmp.Or(unreachable, seed.Err)
		}
	}
	return false, refused, unreachable
}

// isRefusal reports a mismatch or distrust. Retries cure only a taken name.
func isRefusal(err error) bool {
	var (
		mismatch  *member.MismatchError
		alert     *net.OpError
		authority x509.UnknownAuthorityError
		invalid   x509.CertificateInvalidError
		name      x509.HostnameError
	)
	return errors.Is(err, member.ErrRefused) || errors.As(err, &mismatch) || errors.As(err, &authority) || errors.As(err, &invalid) || errors.As(err, &name) ||
		errors.As(err, &alert) && alert.Op == "remote error" // an alert from the peer
}

func nameTaken(err error) bool {
	var mismatch *member.MismatchError
	return errors.As(err, &mismatch) && (mismatch.Field == member.FieldName || mismatch.Field == member.FieldRaftID)
}

// warmUp makes the node ready once it is warm (see gossip.Exchange.Warm) and has backends.
func (n *Node) warmUp(ctx context.Context) {
	g := n.gossip.Load()
	if g == nil {
		if n.ready.set() {
			n.log.Info().Str("component", "node").Str("event", EventReady).Msg("ready")
		}
		return
	}
	n.ready.wait(func() string {
		return fmt.Sprintf("warming up: %.0f %% of what the other nodes know has come", 100*g.WarmFraction())
	})
	select {
	case <-g.Warm():
	case <-ctx.Done():
		return
	}
	if !n.awaitBackends(ctx) {
		return
	}
	n.setFleet() // or it grants whole limits until followFleet looks again
	if n.ready.set() {
		n.log.Info().Str("component", "node").Str("event", EventReady).Int64("dur_ms", time.Since(n.began).Milliseconds()).
			Float64("warm_fraction", g.WarmFraction()).Int("nodes", 1+alive(g.Members())).Int64("facts", n.tree.Stats().Facts).Msg("ready")
	}
}

func alive(members *member.List) (count int) {
	for _, m := range members.Members() {
		if m.State == member.StateAlive {
			count++
		}
	}
	return count
}

// GossipAddr is where peers reach this node, "" before Start and without a fleet.
func (n *Node) GossipAddr() string {
	if g := n.gossip.Load(); g != nil {
		return g.Members().Self().Addr
	}
	return ""
}

// reachable replaces an unspecified host by that of gossipAddr.
func reachable(addr, gossipAddr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host != "" && !net.ParseIP(host).IsUnspecified() {
		return addr
	}
	if own, _, err := net.SplitHostPort(gossipAddr); err == nil {
		host = own
	}
	return net.JoinHostPort(host, port)
}
