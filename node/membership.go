package node

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// gossipPort is where nodes meet if the configuration does not say.
const gossipPort = "7946"

// maxNodeName and maxCluster bound what every node tells every other in a
// packet of 512 bytes.
const (
	maxNodeName = 128
	maxCluster  = 64
)

// inFleet says whether the node is to meet others. Without it nothing of
// gossip exists: no port, no goroutine, no bookkeeping.
func (c *Config) inFleet() bool { return len(c.Join) > 0 || c.Gossip != "" }

// gossipAddr is where the node listens for others.
func (c *Config) gossipAddr() string {
	if c.Gossip == "" {
		return ":" + gossipPort
	}
	return c.Gossip
}

// checkFleet says what is wrong with the settings of a fleet: what would keep
// the node out of it, and what would let strangers in.
func (c *Config) checkFleet(bad complain) {
	if !c.inFleet() {
		for _, s := range []struct {
			key   string
			given bool
		}{
			{"gossip_key_file", c.GossipKeyFile != ""}, {"gossip_advertise", c.GossipAdvertise != ""}, {"gossip_insecure", c.GossipInsecure},
			{"gossip_cert", c.GossipCert != ""}, {"gossip_cert_key", c.GossipCertKey != ""}, {"gossip_ca", c.GossipCA != ""},
		} {
			if s.given {
				bad(s.key, "give join (or gossip: \":"+gossipPort+"\" on the first node), or remove it", "is of no use to a node without a fleet")
			}
		}
		return
	}
	for i, seed := range c.Join {
		if err := checkSeed(seed); err != nil {
			bad("join", "write HOST:PORT, dns:NAME:PORT, srv:_SERVICE._tcp.NAME or file:PATH", "entry %d, %q: %v", i+1, seed, err)
		}
	}
	if _, err := splitAddress(c.gossipAddr(), true); err != nil {
		bad("gossip", "write :"+gossipPort+" or HOST:PORT", "%q: %v", c.Gossip, err)
	}
	if c.GossipAdvertise != "" {
		switch host, err := splitAddress(c.GossipAdvertise, false); {
		case err != nil:
			bad("gossip_advertise", "write HOST:PORT as the other nodes reach it", "%q: %v", c.GossipAdvertise, err)
		case net.ParseIP(host).IsUnspecified():
			bad("gossip_advertise", "write HOST:PORT as the other nodes reach it", "%q is nobody's address", c.GossipAdvertise)
		}
	}
	if c.Secret == "" && c.SecretFile == "" {
		bad("secret_file", "make one with openssl rand -hex 32, copy it to every node and give it as --secret-file",
			"is missing: what nodes tell each other means nothing unless all of them hash prompts with one secret")
	}
	if c.Cluster == "" || len(c.Cluster) > maxCluster || !headerWord(c.Cluster) {
		bad("cluster", "write one word such as grapevine", "%q is not 1 to %d visible ASCII characters", c.Cluster, maxCluster)
	}
	if len(c.NodeName) > maxNodeName {
		bad("node_name", "write a shorter one", "is longer than %d characters", maxNodeName)
	}
	c.checkFleetKeys(bad)
}

// checkFleetKeys refuses a port that anybody could join through.
func (c *Config) checkFleetKeys(bad complain) {
	host, _ := splitAddress(c.gossipAddr(), true)
	switch {
	case c.GossipKeyFile != "" && c.GossipInsecure:
		bad("gossip_insecure", "keep one", "gossip_key_file and gossip_insecure are both given")
	case c.GossipKeyFile == "" && !c.GossipInsecure && !loopback(host):
		bad("gossip_key_file", "make one with grapevine keys generate --out FILE and copy it to every node (or gossip_insecure, where everybody on the network may be a node)",
			"is missing, and %s is open to others: whoever reaches it could join", c.gossipAddr())
	}
	given := 0
	for _, file := range []string{c.GossipCert, c.GossipCertKey, c.GossipCA} {
		if file != "" {
			given++
		}
	}
	if given != 0 && given != 3 {
		bad("gossip_cert", "give all three or none", "gossip_cert, gossip_cert_key and gossip_ca belong together")
	}
}

// checkSeed says what is wrong with one entry of join.
func checkSeed(seed string) error {
	scheme, rest, ok := strings.Cut(seed, ":")
	if !ok || strings.HasPrefix(seed, "[") {
		scheme = ""
	}
	switch scheme {
	case "dns":
		_, err := splitAddress(rest, false)
		return err
	case "srv":
		if !strings.HasPrefix(rest, "_") || !strings.Contains(rest, "._tcp.") && !strings.Contains(rest, "._udp.") {
			return errors.New("is no name of SRV records")
		}
		return nil
	case "file":
		if rest == "" {
			return errors.New("names no file")
		}
		return nil
	default:
		_, err := splitAddress(seed, false)
		return err
	}
}

// splitAddress takes host:port apart and says what is wrong with it. anyHost
// allows an empty host and, for listening, port 0.
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

// loopback says whether only this machine reaches the host.
func loopback(host string) bool {
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}
