package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"grapevine.example/gossip/member"
	"grapevine.example/node/config"
)

func TestCopiedDataIsRefused(t *testing.T) {
	t.Parallel()
	var original config.Config
	nodes := startAgreeingWith(t, func(c *config.Config) {
		if c.NodeName == "three" {
			original = *c
		}
	}, newFakeEngine(t, "m").URL)
	stopNode(t, nodes[2])
	copied := fleetConfig("four", []string{nodes[0].GossipAddr(), nodes[1].GossipAddr()})
	copied.DataDir, copied.Gossip = t.TempDir(), elsewhere()
	raw, err := os.ReadFile(filepath.Join(original.DataDir, "raft.db"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(copied.DataDir, "raft.db"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	nodes[2] = startNodeWithin(t, original, patientChange)
	awaitAgreement(t, nodes...)
	clone, err := New(copied)
	if err != nil {
		t.Fatal(err)
	}
	clone.nameWait = time.Hour // until the leader has refused it
	ctx, cancel := context.WithCancel(t.Context())
	started := make(chan error, 1)
	go func() { started <- clone.Start(ctx) }()
	eventually(t, "the clone is refused", func() bool {
		_, why := clone.ready.get()
		return strings.Contains(why, "node four has the raft id of another node that is alive") && strings.Contains(why, "three ("+nodes[2].GossipAddr()+")")
	})
	eventually(t, "both nodes that the clone dials show it", func() bool { // of them one leads, unless the original does
		return !slices.ContainsFunc(nodes[:2], func(n *Node) bool {
			st, err := n.Raft()
			return err != nil || !strings.Contains(st.Problem, "of three (") || !strings.Contains(st.Problem, "its data directory was copied; stop the copy, empty its data directory")
		})
	})
	cancel()
	if err := <-started; err == nil {
		t.Fatal("the clone was started")
	}

	refused, err := New(copied)
	if err != nil {
		t.Fatal(err)
	}
	refused.nameWait = 100 * time.Millisecond
	var mismatch *member.MismatchError
	if err := refused.Start(t.Context()); !errors.Is(err, ErrRefused) || !errors.As(err, &mismatch) || mismatch.Field != member.FieldRaftID {
		t.Errorf("the clone ends with %v", err)
	}
	stopNode(t, refused)

	stopNode(t, nodes[2])
	moved := startNodeWithin(t, copied, patientChange)
	awaitAgreement(t, nodes[0], nodes[1], moved)
}
