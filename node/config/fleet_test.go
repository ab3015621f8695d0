package config

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"grapevine.example/prefixtree"
)

const fleetText = "join: [10.0.0.1:7946]\nsecret: 0123456789abcdef\ngossip_key_file: k\n"

const founderText = "founders: [a:1, b:1, c:1]\nsecret: 0123456789abcdef\ngossip_key_file: k\ndata_dir: d\n"

func TestFleetSettings(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"complete", fleetText, ""},
		{"alone", "", ""},
		{"first of a fleet", "gossip: ':7946'\nsecret: 0123456789abcdef\ngossip_key_file: k\n", ""},
		{"every form", "join: [10.0.0.1:7946, '[::1]:7946', host:1, dns:nodes.example:7946, srv:_gossip._tcp.example, file:/etc/nodes]\nsecret_file: s\ngossip_key_file: k\n", ""},
		{"loopback without a key", "gossip: 127.0.0.1:7946\nsecret: 0123456789abcdef\n", ""},
		{"IPv6 loopback without a key", "gossip: '[::1]:0'\nsecret: 0123456789abcdef\n", ""},
		{"insecure on purpose", "gossip: ':7946'\ngossip_insecure: true\nsecret: 0123456789abcdef\n", ""},
		{"certificates", fleetText + "gossip_cert: c\ngossip_cert_key: k\ngossip_ca: r\n", ""},

		{"founders", founderText, ""},
		{"a founder alone", strings.Replace(founderText, "a:1, b:1, c:1", "a:1", 1), ""},

		{"two founders", strings.Replace(founderText, ", c:1", "", 1), "f.yaml:1: founders: 2 nodes cannot found a fleet: list 1, 3 or 5 nodes"},
		{"a founder twice", strings.Replace(founderText, "c:1", "b:1", 1), "f.yaml:1: founders: b:1 is listed twice: list every node once"},
		{"a founder without port", strings.Replace(founderText, "c:1", "c", 1), `f.yaml:1: founders: "c": is not HOST:PORT`},
		{"a founder without data_dir", strings.Replace(founderText, "data_dir: d\n", "", 1), "data_dir: is missing: a founder votes, and must not forget its votes"},
		{"no secret", "join: ['a:1']\ngossip_key_file: k\n", "secret_file: is missing: what nodes tell each other means nothing unless all of them hash prompts with one secret: make one with openssl rand -hex 32"},
		{"no key", "gossip: ':7946'\nsecret: 0123456789abcdef\n", "gossip_key_file: is missing, and :7946 is open to other hosts: any of them could join: make one with grapevine keys generate"},
		{"no key by default", "join: ['a:1']\nsecret: 0123456789abcdef\n", "gossip_key_file: is missing, and :7946 is open to other hosts"},
		{"no key on an address", "\ngossip: 10.0.0.1:7946\nsecret: 0123456789abcdef\n", "gossip_key_file: is missing, and 10.0.0.1:7946 is open"},
		{"key and insecure", fleetText + "gossip_insecure: true\n", "f.yaml:4: gossip_insecure: gossip_key_file and gossip_insecure are both given: keep one"},
		{"key without a fleet", "gossip_key_file: k\n", "f.yaml:1: gossip_key_file: is of no use to a node without a fleet: give join"},
		{"advertise without a fleet", "gossip_advertise: a:1\n", "f.yaml:1: gossip_advertise: is of no use"},
		{"half of TLS", fleetText + "gossip_cert: c\n", "f.yaml:4: gossip_cert: gossip_cert, gossip_cert_key and gossip_ca belong together: give all three or none"},
		{"no ports", "join: [10.0.0.1, '::1', host, dns:nodes.example]\nsecret_file: s\ngossip_key_file: k\n", ""},
		{"no address", "secret: 0123456789abcdef\ngossip_key_file: k\njoin: ['a:1', '10.0.0.7:']\n", `f.yaml:3: join: entry 2, "10.0.0.7:": port "" is not from 1 to 65535: write HOST[:PORT], dns:NAME[:PORT], `},
		{"port 0", strings.Replace(fleetText, "7946", "0", 1), `f.yaml:1: join: entry 1, "10.0.0.1:0": port "0" is not from 1 to 65535`},
		{"port beyond", strings.Replace(fleetText, "7946", "65536", 1), `port "65536" is not from 1 to 65535`},
		{"no host", strings.Replace(fleetText, "10.0.0.1:7946", "':7946'", 1), `join: entry 1, ":7946": has no host`},
		{"a URL", strings.Replace(fleetText, "10.0.0.1:7946", "'http://a:1'", 1), `join: entry 1, "http://a:1": is not HOST:PORT`},
		{"a path", strings.Replace(fleetText, "10.0.0.1:7946", "'/etc/nodes:1'", 1), `"/etc/nodes" is no host`},
		{"dns of nothing", strings.Replace(fleetText, "10.0.0.1:7946", "'dns:'", 1), `"dns:": is not HOST:PORT`},
		{"srv of nothing", strings.Replace(fleetText, "10.0.0.1:7946", "'srv:nodes.example'", 1), `"srv:nodes.example": is no name of SRV records`},
		{"file of nothing", strings.Replace(fleetText, "10.0.0.1:7946", "'file:'", 1), `"file:": names no file`},
		{"gossip without port", fleetText + "gossip: 10.0.0.1\n", `f.yaml:4: gossip: "10.0.0.1": is not HOST:PORT: write :7946`},
		{"advertise no host", fleetText + "gossip_advertise: 0.0.0.0:7946\n", `f.yaml:4: gossip_advertise: "0.0.0.0:7946" is not the address of one host`},
		{"advertise no host", fleetText + "gossip_advertise: ':7946'\n", `gossip_advertise: ":7946": has no host`},
		{"no cluster", fleetText + "cluster: two words\n", `f.yaml:4: cluster: "two words" is not 1 to 64 letters`},
		{"long name", fleetText + "node_name: " + strings.Repeat("n", 129) + "\n", "is not 1 to 128 letters"},
		{"odd name", fleetText + "node_name: a/b\n", `f.yaml:4: node_name: "a/b" is not 1 to 128 letters`},
		{"no budget", fleetText + "gossip_budget: 0\n", "f.yaml:4: gossip_budget: 0 is not positive"},
		{"small budget", fleetText + "gossip_budget: 1KB\n", "f.yaml:4: gossip_budget: 1000/s is below 16KiB/s"},
		{"no patience", fleetText + "warm_deadline: 0s\n", "f.yaml:4: warm_deadline: 0s is too short"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, lines, err := Parse("f.yaml", []byte(tc.text))
			if err != nil {
				t.Fatal(err)
			}
			err = c.Validate("f.yaml", lines)
			if tc.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var ce *Error
			if err == nil || !strings.Contains(err.Error(), tc.want) || !errors.As(err, &ce) {
				t.Fatalf("got  %v\nwant %s", err, tc.want)
			}
		})
	}
}

func TestBackendKeysCollide(t *testing.T) {
	seen := make(map[uint32]string)
	for i := 0; ; i++ {
		name := fmt.Sprintf("engine-%d", i)
		key := prefixtree.BackendKey(name)
		other, ok := seen[key]
		seen[key] = name
		if !ok {
			continue
		}
		backends := fmt.Sprintf("backends: [{url: http://a, name: %s}, {url: http://b}, {url: http://c, name: %s}]\n", other, name)
		for text, want := range map[string]string{
			backends:             "",
			fleetText + backends: fmt.Sprintf("f.yaml:4: backends: %s and %s have the same key %08x in gossip: give one of them another name, on every node", other, name, key),
		} {
			c, lines, err := Parse("f.yaml", []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Validate("f.yaml", lines); err == nil != (want == "") || err != nil && err.Error() != want {
				t.Errorf("got  %v\nwant %s", err, want)
			}
		}
		return
	}
}
