package scenario

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Client is one line of the fleet's clients file; its key is its name.
type Client struct {
	Name     string
	Weight   float64 // its share of the engines; default 1
	InFlight int     // the most requests that it may have in flight over the fleet; 0: no limit
	// Workers is how many requests it always has under way, each of one turn; 0: it holds the conversations.
	Workers int
	Output  int // tokens of the workers' replies; 0: those of Load
	// Refused: the scenario gives it more requests than its limit or the queue has places for, so that it gets 429.
	Refused bool
}

// queueOf is how many requests an engine takes at a time, and how many a router lets wait: so few that the aggressor
// of crowded gets no place for some of its requests when a router is lost.
type queueOf struct{ engine, router int }

func (q queueOf) settings() map[string]any {
	return map[string]any{"queue_requests": q.router, "queue_timeout": queueWait.String(), "queue_in_flight": q.engine}
}

const queueWait = 10 * time.Second

// crowded has a victim with that many requests, a client with ten times as many, and one that asks for five times its limit.
func crowded(victim int) []Client {
	return []Client{
		{Name: "talkers"},
		{Name: "victim", Workers: victim},
		{Name: "aggressor", Workers: 10 * victim, Refused: true},
		{Name: "limited", InFlight: 8, Workers: 40, Output: 600, Refused: true},
	}
}

// beside is what crowded has of conversations: so little that they never use up their share.
var beside = Load{Rate: 1.5, Opening: [2]int{300, 2_000}, HeadBytes: 1024, Departing: 0.1}

// writeClients writes a clients file into a directory.
func writeClients(dir string, list []Client) (file string, err error) {
	var text strings.Builder
	text.WriteString("anonymous: refuse\nclients:\n")
	for _, c := range list {
		fmt.Fprintf(&text, "  - {name: %s, key_sha256: %x, trusted: true, weight: %v", c.Name, sha256.Sum256([]byte(c.Name)), cmp.Or(c.Weight, 1))
		if c.InFlight > 0 {
			fmt.Fprintf(&text, ", in_flight: %d", c.InFlight)
		}
		text.WriteString("}\n")
	}
	file = filepath.Join(dir, "clients.yaml")
	return file, os.WriteFile(file, []byte(text.String()), 0o600)
}

// holder names the client of the conversations; "" without clients.
func holder(list []Client) string {
	for _, c := range list {
		if c.Workers == 0 {
			return c.Name
		}
	}
	return ""
}

// crowd runs the workers of all clients until ctx ends; requests that are under way then end by themselves.
func (t *traffic) crowd(ctx context.Context) {
	var working sync.WaitGroup
	defer working.Wait()
	for i := range t.clients {
		c := &t.clients[i]
		for w := range c.Workers {
			working.Go(func() {
				// Conversations and floods have smaller numbers.
				for id := (i+1)<<48 | w<<28; ctx.Err() == nil; id++ {
					t.one(c, id)
				}
			})
		}
	}
}

// one sends a request of a worker.
func (t *traffic) one(c *Client, id int) {
	client := t.client(false)
	defer client.CloseIdleConnections()
	talk := newConversation(id, t.seed, [2]int{300, 600}, "", "")
	talk.client, talk.output = c.Name, c.Output
	t.turn(client, talk, &memory{})
}
