package proxy

import (
	"encoding/binary"
	"slices"

	"github.com/zeebo/xxh3"

	"grapevine.example/proxy/clients"
	"grapevine.example/proxy/policy"
	"grapevine.example/proxy/prompt"
)

// follow names q by a body that was read and lets it follow its rule. It returns names with the copies that q holds.
func (p *Proxy) follow(q *policy.Request, r *prompt.Request, members []string, names []byte) []byte {
	names = name(q, r, names)
	if len(members) > 0 {
		q.Member = func(name string) []byte {
			if i := slices.Index(members, name); i >= 0 {
				return r.Members[i]
			}
			return nil
		}
	}
	p.cfg.Rules.Follow(q)
	q.Member = nil
	names, q.Session = appendName(names, q.Session) // it may be a view of the body
	return names
}

// followBody is prompt.Options.Follow.
func (e *exchange) followBody(r *prompt.Request) []byte {
	e.names = e.proxy.follow(&e.query, r, e.members, e.names)
	return e.query.Route.Target
}

// appendSender names the client of a request, for shares of rules: by its name, else by its credential, else by its address.
func appendSender(names []byte, client *clients.Client, header func(name string) []byte, address []byte) (longer, who []byte) {
	key := header("Authorization")
	if len(key) == 0 {
		key = header("X-Api-Key")
	}
	switch {
	case len(key) == 0:
		return appendName(names, address)
	case client == nil:
		var hash [8]byte // requests keep no credentials
		binary.LittleEndian.PutUint64(hash[:], xxh3.Hash(key))
		return appendName(names, hash[:])
	}
	from := len(names)
	names = append(names, client.Name...)
	return names, names[from:len(names):len(names)]
}
