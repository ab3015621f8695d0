package node

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"grapevine/gossip/member"
	"grapevine/node/admin"
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
	check := func(what string, list *admin.KeyList, err error, primary string, accepted ...string) {
		t.Helper()
		if err != nil || list.Error != "" || len(list.Nodes) != 2 {
			t.Fatalf("%s: %+v %v", what, list, err)
		}
		for _, n := range list.Nodes {
			if n.Error != "" || !n.Persisted || n.Primary != primary || strings.Join(n.Keys, " ") != strings.Join(accepted, " ") {
				t.Errorf("%s: %+v, want %s of %v", what, n, primary, accepted)
			}
		}
	}
	list, err := c.Keys(t.Context())
	check("list", list, err, oldID, oldID)

	if list, err = c.UseKey(t.Context(), newID); err != nil || !strings.Contains(list.Error, "install it first") {
		t.Errorf("a key that nobody has was taken into use: %+v %v", list, err)
	}
	key, err := admin.ParseGossipKey([]byte(newText))
	if err != nil {
		t.Fatal(err)
	}
	list, err = c.InstallKey(t.Context(), key)
	check("install", list, err, oldID, oldID, newID)
	if list, err = c.RemoveKey(t.Context(), oldID); err != nil || !strings.Contains(list.Error, "use another one first") {
		t.Errorf("the key in use was removed: %+v %v", list, err)
	}
	list, err = c.UseKey(t.Context(), newID)
	check("use", list, err, newID, newID, oldID)
	list, err = c.RemoveKey(t.Context(), oldID)
	check("remove", list, err, newID, newID)
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
	list, err := nodes[0].Keys(ctx)
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
