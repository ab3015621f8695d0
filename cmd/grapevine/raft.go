package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"text/tabwriter"

	"grapevine.example/node/admin"
	"grapevine.example/raftstore"
)

type raftCmd struct {
	Status   raftStatusCmd   `cmd:"" default:"withargs" help:"Show the group as one router sees it (the default)."`
	Transfer raftTransferCmd `cmd:"" help:"Hand leadership to another voter."`
	Inspect  raftInspectCmd  `cmd:"" help:"Show what the data of a stopped router holds: its id, its last log entry, its group."`
	Recover  raftRecoverCmd  `cmd:"" help:"Force a new group on the data of a stopped router, when most voters are lost for good."`
}

type raftStatusCmd struct {
	adminFlags
}

func (c *raftStatusCmd) Run(s *streams) error {
	return show(&c.adminFlags, s, (*admin.Client).Raft, printRaft)
}

func printRaft(out io.Writer, st *admin.RaftStatus) error {
	fmt.Fprintf(out, "%s (%s) is %s, term %d, log %d, committed %d, state version %d\n", st.Node, st.ID, st.Role, st.Term, st.LastIndex, st.Committed, st.Version)
	if st.Waiting != "" {
		fmt.Fprintf(out, "waiting: %s\n", st.Waiting)
	}
	if st.Problem != "" {
		fmt.Fprintf(out, "problem: %s\n", st.Problem)
	}
	if len(st.Servers) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tID\tADDRESS\tROLE\tALIVE\tHEALTHY\tLOG")
	led := st.Role == "leader" // only a leader knows its followers' state
	for _, v := range st.Servers {
		role := "follows"
		switch {
		case v.ID == st.Leader:
			role = "leads"
		case v.Voter:
			role = "votes"
		}
		healthy, log := "-", "-"
		if led {
			healthy, log = yesNo(v.Healthy), fmt.Sprint(v.Index)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", cmp.Or(v.Name, "-"), v.ID, v.Addr, role, yesNo(v.Alive || v.ID == st.ID), healthy, log)
	}
	return w.Flush()
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

type raftTransferCmd struct {
	To string `arg:"" optional:"" placeholder:"NAME" help:"A voter, by name or id; the most advanced one if left out."`
	adminFlags
}

func (c *raftTransferCmd) Run(s *streams) error {
	return show(&c.adminFlags, s, func(client *admin.Client, ctx context.Context) (*admin.RaftStatus, error) {
		return client.TransferLeadership(ctx, c.To)
	}, printRaft)
}

type raftInspectCmd struct {
	DataDir string `name:"data-dir" required:"" type:"existingdir" placeholder:"DIR" help:"The router's data_dir. It must not run."`
	JSON    bool   `name:"json" help:"Print one JSON object."`
}

func (*raftInspectCmd) Help() string {
	return "It changes nothing. Of several survivors of a lost majority, the one with the highest last log entry has lost the least."
}

func (c *raftInspectCmd) Run(s *streams) error {
	data, err := raftstore.Inspect(c.DataDir)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(s.out, data)
	}
	fmt.Fprintf(s.out, "id %s, group %s, log %d, state version %d with %d backends\n", data.ID, cmp.Or(data.Group, "-"), data.LastIndex, data.Version, data.Backends)
	if len(data.Servers) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tADDRESS\tVOTES")
	for _, v := range data.Servers {
		fmt.Fprintf(w, "%s\t%s\t%s\n", v.ID, v.Addr, yesNo(v.Voter))
	}
	return w.Flush()
}

type raftRecoverCmd struct {
	DataDir string   `name:"data-dir" required:"" type:"existingdir" placeholder:"DIR" help:"The router's data_dir. It must not run."`
	Servers []string `name:"server" placeholder:"ID=HOST:PORT" help:"A server of the new group: its id and raft address, as raft status shows them. Each becomes a voter. Repeatable, or --peers."`
	Peers   string   `name:"peers" type:"existingfile" placeholder:"FILE" help:"The same as JSON, which can also name servers that only follow: [{\"id\":..., \"address\":..., \"voter\":true}, {..., \"voter\":false}]."`
	JSON    bool     `name:"json" help:"Print one JSON object."`
}

func (*raftRecoverCmd) Help() string {
	return "Use it only if most voters are lost for good: changes that only they stored are lost. Stop every surviving router, run this command on each with the same servers, and start them again. Survivors recovered with different servers form different groups: the second to start finds the first and exits with the reason and the remedy. Every --server becomes a voter, and changes need a majority of voters. Name a non-voter in --peers, or leave it out, empty its data_dir, and let it join. docs/operate.md has the whole procedure."
}

func (c *raftRecoverCmd) Run(s *streams) error {
	servers, err := c.servers(s)
	if err != nil {
		return usageError{err}
	}
	if err := raftstore.Recover(c.DataDir, servers); err != nil {
		return err
	}
	if c.JSON {
		return printJSON(s.out, struct {
			Servers []raftstore.Server `json:"servers"`
		}{servers})
	}
	voters := 0
	for _, v := range servers {
		if v.Voter {
			voters++
		}
	}
	_, err = fmt.Fprintf(s.out, "%s now belongs to a group of %d, of which %d vote\n", c.DataDir, len(servers), voters)
	if err == nil && len(servers) > 1 {
		_, err = fmt.Fprintln(s.out, "Run the same, with the same servers, on the others; then start all of them.")
	}
	return err
}

func (c *raftRecoverCmd) servers(s *streams) (servers []raftstore.Server, err error) {
	if (c.Peers == "") == (len(c.Servers) == 0) {
		return nil, fmt.Errorf("give the servers of the new group, by --server or by --peers")
	}
	for _, text := range c.Servers {
		id, addr, ok := strings.Cut(text, "=")
		if !ok || id == "" || addr == "" {
			return nil, fmt.Errorf("--server %q: write ID=HOST:PORT", text)
		}
		servers = append(servers, raftstore.Server{ID: id, Addr: addr, Voter: true})
	}
	if c.Peers != "" {
		if servers, err = readServers(s, c.Peers); err != nil {
			return nil, err
		}
	}
	for _, v := range servers {
		// Other nodes could not dial such an address and never join.
		if host, port, err := net.SplitHostPort(v.Addr); err != nil || host == "" || port == "" || port == "0" || net.ParseIP(host).IsUnspecified() {
			return nil, fmt.Errorf("server %s: %q is no address that others reach it at: write HOST:PORT, as raft status shows it", v.ID, v.Addr)
		}
	}
	return servers, nil
}

const maxPeersFile = 1 << 20

func readServers(s *streams, path string) (servers []raftstore.Server, err error) {
	text, err := readInput(s, path, maxPeersFile)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&servers); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: something follows the list", path)
	}
	return servers, nil
}
