package node

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"grapevine.example/gossip/member"
	"grapevine.example/node/admin"
)

func TestKeyRotation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	oldText, oldID := admin.NewGossipKey()
	newText, newID := admin.NewGossipKey()
	var nodes []*Node
	var files, join []string
	for _, name := range []string{"one", "two"} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte("# the first key\n"+oldText+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg := fleetConfig(name, join)
		cfg.GossipKeyFile = file
		nodes, files = append(nodes, startNode(t, cfg)), append(files, file)
		join = []string{nodes[0].GossipAddr()}
	}
	awaitFleet(t, nodes...)
	c := admin.NewClient(nodes[1].AdminAddr())
	succeeds := func(what string, op func() (*admin.KeyList, error), primary string, accepted ...string) {
		t.Helper()
		eventually(t, what, func() bool { // operations may be repeated
			list, err := op()
			if err != nil || list.Error != "" || len(list.Nodes) != 2 {
				t.Logf("%s: %+v %v", what, list, err)
				return false
			}
			for _, n := range list.Nodes {
				if n.Error != "" || !n.Persisted || n.Primary != primary || strings.Join(n.Keys, " ") != strings.Join(accepted, " ") {
					t.Fatalf("%s: %+v, want %s of %v", what, n, primary, accepted)
				}
			}
			return true
		})
	}
	refused := func(what, want string, op func() (*admin.KeyList, error)) {
		t.Helper()
		eventually(t, what+" is refused", func() bool {
			list, err := op()
			if err == nil && list.Error == "" {
				t.Fatalf("%s: %+v", what, list)
			}
			return err == nil && strings.Contains(list.Error, want)
		})
	}
	key, err := admin.ParseGossipKey([]byte(newText))
	if err != nil {
		t.Fatal(err)
	}
	use := func() (*admin.KeyList, error) { return c.UseKey(t.Context(), newID) }
	remove := func() (*admin.KeyList, error) { return c.RemoveKey(t.Context(), oldID) }
	succeeds("list", func() (*admin.KeyList, error) { return c.Keys(t.Context()) }, oldID, oldID)
	refused("the use of an unknown key", "install it first", use)
	succeeds("install", func() (*admin.KeyList, error) { return c.InstallKey(t.Context(), key) }, oldID, oldID, newID)
	refused("the removal of the key in use", "use another one first", remove)
	succeeds("use", use, newID, newID, oldID)
	succeeds("remove", remove, newID, newID)
	awaitFleet(t, nodes...)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(text), newText) || strings.Contains(string(text), oldText) {
			t.Errorf("%s was not rewritten: %v", file, err)
		}
	}
	third := fleetConfig("three", join)
	third.GossipKeyFile = files[0]
	awaitFleet(t, append(nodes, startNode(t, third))...)
}

// TestKeysOfASilentNode: such a node is named in time, and an operation that needs all changes
// nothing.
func TestKeysOfASilentNode(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "key")
	text, id := admin.NewGossipKey()
	key, err := member.ParseFingerprint(id)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	one := fleetConfig("one", nil)
	one.GossipKeyFile = file
	nodes := []*Node{startNode(t, one)}
	two := fleetConfig("two", []string{nodes[0].GossipAddr()})
	two.GossipKeyFile = file
	nodes = append(nodes, startNode(t, two))
	awaitFleet(t, nodes...)
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	list, err := nodes[0].ChangeKeys(ctx, member.KeyList, nil)
	if err != nil || len(list.Nodes) != 2 || list.Nodes[0].Error != "" || list.Nodes[0].Primary == "" || !strings.Contains(list.Nodes[1].Error, "timeout") || list.Error != "two: "+list.Nodes[1].Error {
		t.Errorf("list: %+v %v", list, err)
	}
	list, err = nodes[0].ChangeKeys(ctx, member.KeyUse, key[:])
	if err != nil || len(list.Nodes) != 2 || list.Error != "two does not answer, so nothing was changed: "+list.Nodes[1].Error {
		t.Errorf("use: %+v %v", list, err)
	}
}

func TestKeyRequestsAreChecked(t *testing.T) {
	t.Parallel()
	n, err := New(fleetConfig("one", nil))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer stopNode(t, n)
	for _, tc := range []struct {
		media, body string
		want        int
	}{
		{"text/plain", `{"key":"x"}`, 415},
		{"application/x-www-form-urlencoded", "key=x", 415},
		{"application/json", `{`, 400},
		{"application/json", `{}`, 400},
		{"application/json", `{"key":"AAAA","id":"00"}`, 400},
		{"application/json", `{"key":"AAAA"}`, 400},
		{"application/json", `{"id":"xyz"}`, 400},
		{"application/json", `{"key":"` + strings.Repeat("A", 8192) + `"}`, 400},
	} {
		for _, op := range []string{"install", "use", "remove"} {
			resp, err := http.Post("http://"+n.AdminAddr()+"/keys/"+op, tc.media, strings.NewReader(tc.body))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != tc.want {
				t.Errorf("%s %s %.40s: %d, want %d", op, tc.media, tc.body, resp.StatusCode, tc.want)
			}
		}
	}
}
