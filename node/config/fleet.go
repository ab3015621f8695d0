package config

import (
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"

	"grapevine.example/prefixtree"
	"grapevine.example/raftstore"
)

const gossipPort = "7946"

// maxNodeName and maxCluster keep a node's card within a packet of 512 bytes.
const (
	maxNodeName = 128
	maxCluster  = 64
)

const minGossipBudget = 16 << 10

func (c *Config) InFleet() bool { return len(c.Join) > 0 || len(c.Founders) > 0 || c.Gossip != "" }

func (c *Config) Seeds() []string { return slices.Concat(c.Join, c.Founders) }

func (c *Config) GossipAddr() string {
	if c.Gossip == "" {
		return ":" + gossipPort
	}
	return c.Gossip
}

// MayVote is false for fleet members without data_dir, which would forget their votes.
func (c *Config) MayVote() bool { return !c.InFleet() || c.DataDir != "" }

// Joins reports whether this node must never found a fleet alone.
func (c *Config) Joins() bool { return c.InFleet() && (len(c.Join) > 0 || c.DataDir == "") }

// MaxNumbers leaves as much room for unlisted engines as for listed ones.
func (c *Config) MaxNumbers() int {
	return min(raftstore.MaxBackends+max(raftstore.MaxBackends, len(c.Backends)), math.MaxUint16)
}

func (c *Config) checkFleet(bad complain) {
	if !c.InFleet() {
		for _, s := range []struct {
			key   string
			given bool
		}{
			{"gossip_key_file", c.GossipKeyFile != ""}, {"gossip_advertise", c.GossipAdvertise != ""}, {"gossip_insecure", c.GossipInsecure},
			{"gossip_cert", c.GossipCert != ""}, {"gossip_cert_key", c.GossipCertKey != ""}, {"gossip_ca", c.GossipCA != ""},
		} {
			bad.when(s.given, s.key, "give join (or gossip: \":"+gossipPort+"\" on the first node), or remove it", "is of no use to a node without a fleet")
		}
		return
	}
	for i, seed := range c.Join {
		if err := checkSeed(seed); err != nil {
			bad("join", "write HOST[:PORT], dns:NAME[:PORT], srv:_SERVICE._tcp.NAME or file:PATH", "entry %d, %q: %v", i+1, seed, err)
		}
	}
	if _, err := splitAddress(c.GossipAddr(), true); err != nil {
		bad("gossip", "write :"+gossipPort+" or HOST:PORT", "%q: %v", c.Gossip, err)
	}
	if c.GossipAdvertise != "" {
		switch host, err := splitAddress(c.GossipAdvertise, false); {
		case err != nil:
			bad("gossip_advertise", "write HOST:PORT as the other nodes reach it", "%q: %v", c.GossipAdvertise, err)
		case net.ParseIP(host).IsUnspecified():
			bad("gossip_advertise", "write HOST:PORT as the other nodes reach it", "%q is not the address of one host", c.GossipAdvertise)
		}
	}
	if c.Secret == "" && c.SecretFile == "" {
		bad("secret_file", "make one with openssl rand -hex 32, copy it to every node and give it as --secret-file",
			"is missing: what nodes tell each other means nothing unless all of them hash prompts with one secret")
	}
	bad.when(!memberName(c.Cluster, maxCluster), "cluster", "write one such as grapevine", "%q is not 1 to %d letters, digits, '.', '-' and '_'", c.Cluster, maxCluster)
	bad.when(c.NodeName != "" && !memberName(c.NodeName, maxNodeName), "node_name", "write one such as router-1", "%q is not 1 to %d letters, digits, '.', '-' and '_', as a node in a fleet must be named", c.NodeName, maxNodeName)
	bad.when(c.GossipBudget > 0 && c.GossipBudget < minGossipBudget, "gossip_budget", "16MiB is the default", "%s/s is below %s/s, which loads and questions alone may need", c.GossipBudget, Bytes(minGossipBudget))
	c.checkFleetKeys(bad)
	c.checkBackendKeys(bad)
	c.checkRaft(bad)
}

func (c *Config) checkAgreement(bad complain) {
	if !c.InFleet() && c.DataDir != "" && c.Secret == "" && c.SecretFile == "" {
		bad("secret_file", "make one with openssl rand -hex 32 and give it as --secret-file",
			"is missing: what data_dir keeps belongs to one secret, and a random one would not be there after a restart")
	}
	bad.when(c.Voters != 3 && c.Voters != 5, "voters", "3 is the default", "%d is not 3 or 5", c.Voters)
}

func (c *Config) checkRaft(bad complain) {
	switch n := len(c.Founders); {
	case n == 0:
		return
	case n != 1 && n != 3 && n != 5:
		bad("founders", "list 1, 3 or 5 nodes, the same on each of them", "%d nodes cannot found a fleet", n)
	case c.DataDir == "":
		bad("data_dir", "name a directory that survives a restart", "is missing: a founder votes, and must not forget its votes")
	}
	for i, addr := range c.Founders {
		if _, err := splitAddress(addr, false); err != nil {
			bad("founders", "write HOST:PORT as the other nodes reach it", "%q: %v", addr, err)
		}
		bad.when(slices.Contains(c.Founders[:i], addr), "founders", "list every node once", "%s is listed twice", addr)
	}
}

func (c *Config) checkFleetKeys(bad complain) {
	host, _ := splitAddress(c.GossipAddr(), true)
	switch {
	case c.GossipKeyFile != "" && c.GossipInsecure:
		bad("gossip_insecure", "keep one", "gossip_key_file and gossip_insecure are both given")
	case c.GossipKeyFile == "" && !c.GossipInsecure && !loopback(host):
		bad("gossip_key_file", "make one with grapevine keys generate --out FILE and copy it to every node (or gossip_insecure, where any host of the network may join)",
			"is missing, and %s is open to other hosts: any of them could join", c.GossipAddr())
	}
	cert, key, ca := c.GossipCert != "", c.GossipCertKey != "", c.GossipCA != ""
	bad.when(cert != key || cert != ca, "gossip_cert", "give all three or none", "gossip_cert, gossip_cert_key and gossip_ca belong together")
}

func (c *Config) checkBackendKeys(bad complain) {
	names := make(map[uint32]string, len(c.Backends))
	for _, b := range c.Backends {
		key := prefixtree.BackendKey(b.Name)
		if other, ok := names[key]; ok && other != b.Name {
			bad("backends", "give one of them another name, on every node", "%s and %s have the same key %08x in gossip", other, b.Name, key)
		}
		names[key] = b.Name
	}
}

func checkSeed(seed string) error {
	if path, ok := strings.CutPrefix(seed, "file:"); ok {
		if path == "" {
			return errors.New("names no file")
		}
		return nil
	}
	if name, ok := strings.CutPrefix(seed, "srv:"); ok {
		if !strings.HasPrefix(name, "_") || !strings.Contains(name, "._tcp.") && !strings.Contains(name, "._udp.") || strings.ContainsAny(name, ": /") {
			return errors.New("is no name of SRV records")
		}
		return nil
	}
	addr := strings.TrimPrefix(seed, "dns:")
	if addr != "" && !strings.ContainsAny(addr, ":[]") || net.ParseIP(addr) != nil {
		addr = net.JoinHostPort(addr, gossipPort)
	}
	_, err := splitAddress(addr, false)
	return err
}

// splitAddress splits host:port. anyHost allows an empty host and port 0.
func splitAddress(addr string, anyHost bool) (host string, err error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", errors.New("is not HOST:PORT")
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 && !anyHost {
		return "", fmt.Errorf("port %q is not from 1 to 65535", port)
	}
	if host == "" && !anyHost {
		return "", errors.New("has no host")
	}
	if strings.ContainsAny(host, " /") {
		return "", fmt.Errorf("%q is no host", host)
	}
	return host, nil
}

// memberName: names appear in logs, metrics and certificates.
func memberName(name string, most int) bool {
	return name != "" && len(name) <= most && !strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' || r == '_')
	})
}

func loopback(host string) bool {
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}
