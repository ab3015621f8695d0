package raftstore

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// recoverDeadline bounds one write of Recover; only an operator waits for it.
const recoverDeadline = time.Minute

type Server struct {
	ID    string `json:"id"`
	Addr  string `json:"address"`
	Voter bool   `json:"voter"`
}

// Survivor summarizes one node's data for an operator who decides about a recovery.
type Survivor struct {
	ID        string   `json:"id"`
	Group     string   `json:"group"`      // hex; empty if in no group
	LastIndex uint64   `json:"last_index"` // the survivor with the highest index has lost the least
	Version   uint64   `json:"version"`    // of the state known to be committed
	Backends  int      `json:"backends"`   // in that state
	Servers   []Server `json:"servers"`    // newest known configuration, committed or not
}

// Inspect reads the data in dir without changing it. No process may use the data.
func Inspect(dir string) (Survivor, error) {
	sv, err := inspectDir(dir)
	if err != nil {
		return Survivor{}, fmt.Errorf("inspect %s: %w", dir, err)
	}
	return sv, nil
}

func inspectDir(dir string) (Survivor, error) {
	d, err := openExisting(dir)
	if err != nil {
		return Survivor{}, err
	}
	defer d.close(recoverDeadline)
	id, err := loadIdentity(d)
	if err != nil {
		return Survivor{}, err
	}
	sv := Survivor{ID: id.ID, Servers: []Server{}}
	if id.member() {
		sv.Group = id.Group.String()
	}
	state, err := replay(d)
	if err != nil {
		return Survivor{}, err
	}
	if state != nil {
		sv.Version, sv.Backends = state.Version, len(state.Backends)
	}
	conf, last, err := newestConfiguration(d)
	if err != nil {
		return Survivor{}, err
	}
	sv.LastIndex = last
	for _, s := range conf.Servers {
		sv.Servers = append(sv.Servers, Server{string(s.ID), string(s.Address), s.Suffrage == raft.Voter})
	}
	return sv, nil
}

// newestConfiguration is the last configuration in the log, else the snapshot's. last is the
// highest index of both.
func newestConfiguration(d *disk) (conf raft.Configuration, last uint64, err error) {
	meta, _, err := snapshotStore{d}.load(false)
	if err != nil {
		return conf, 0, err
	}
	if meta != nil {
		conf, last = meta.Configuration, meta.Index
	}
	logs := &logStore{disk: d}
	first, err := logs.FirstIndex()
	if err != nil {
		return conf, 0, err
	}
	end, err := logs.LastIndex()
	if err != nil {
		return conf, 0, err
	}
	for index := max(first, last+1); index <= end; index++ {
		var l raft.Log
		if err := logs.GetLog(index, &l); err != nil {
			return conf, 0, err
		}
		if l.Type == raft.LogConfiguration {
			conf = raft.DecodeConfiguration(l.Data)
		}
	}
	return conf, max(last, end), nil
}

// openExisting never creates data, because a wrong directory is a likely mistake.
func openExisting(dir string) (*disk, error) {
	if _, err := os.Stat(filepath.Join(dir, dataFile)); err != nil {
		return nil, err
	}
	return openDisk(dir, recoverDeadline, nil, &writeCounts{})
}

// Recover forces a new configuration on the data in dir, after a group has lost its majority for
// good. No process may use the data.
//
// Stop all nodes, call Recover on each survivor with the same servers, and start them again. All
// entries in a survivor's log then count as committed; entries that only lost nodes had are gone.
//
// The group gets a new id, derived from the old id and the servers, so a lost node with old data
// cannot vote against it; empty that node's data directory before it joins. A recovered node first
// looks for another group of its fleet and stays out of service (ErrBarred) if it finds one, so two
// separate recoveries never both take changes while their nodes see each other.
func Recover(dir string, servers []Server) error {
	if err := recoverDir(dir, servers); err != nil {
		return fmt.Errorf("recover %s: %w", dir, err)
	}
	return nil
}

func recoverDir(dir string, servers []Server) error {
	conf, err := configurationOf(servers)
	if err != nil {
		return err
	}
	d, err := openExisting(dir)
	if err != nil {
		return err
	}
	defer d.close(recoverDeadline)
	id, err := loadIdentity(d)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(servers, func(s Server) bool { return s.ID == id.ID }) {
		return fmt.Errorf("the data is of server %s, which is not among the servers given", id.ID)
	}
	cut := make(chan struct{})
	close(cut)
	logs := &logStore{disk: d, cut: cut}
	if err := logs.check(); err != nil {
		return err
	}
	snaps := snapshotStore{d}
	if there, err := raft.HasExistingState(logs, logs, snaps); err != nil || !there {
		return cmp.Or(err, errors.New("no initial state: it has never been in a group"))
	}
	// The identity comes first: the new servers under the old group's id would look like a part of
	// the old group.
	if err := saveIdentity(d, recoveredIdentity(id, conf)); err != nil {
		return err
	}
	rc := raft.DefaultConfig()
	rc.LocalID = raft.ServerID(id.ID)
	rc.Logger = hclog.NewNullLogger()
	machine := newFSM(func(*State) {}, func(error) {})
	_, trans := raft.NewInmemTransport("recover")
	return raft.RecoverCluster(rc, machine, logs, logs, snaps, trans, conf)
}

// recoveredIdentity is the identity after a recovery. Data that is still unproven is recovered
// again from the original group, so that an operator can correct the servers or repeat the
// recovery.
func recoveredIdentity(id identity, conf raft.Configuration) identity {
	given := id.Given
	if !id.Unproven || len(given) == 0 {
		given = append(slices.Clone(given), id.Group)
	}
	given = given[max(0, len(given)-maxGiven):]
	return identity{
		ID: id.ID, Group: recoveredGroup(given[len(given)-1], conf), Given: given, Size: len(conf.Servers), Unproven: true,
	}
}

func configurationOf(servers []Server) (raft.Configuration, error) {
	var conf raft.Configuration
	voters := 0
	for i, s := range servers {
		if s.ID == "" || s.Addr == "" {
			return conf, fmt.Errorf("servers[%d]: id and address are needed", i)
		}
		suffrage := raft.Nonvoter
		if s.Voter {
			suffrage = raft.Voter
			voters++
		}
		for _, other := range conf.Servers {
			if string(other.ID) == s.ID || string(other.Address) == s.Addr {
				return conf, fmt.Errorf("servers[%d]: id %s or address %s is given twice", i, s.ID, s.Addr)
			}
		}
		conf.Servers = append(conf.Servers, raft.Server{
			Suffrage: suffrage, ID: raft.ServerID(s.ID), Address: raft.ServerAddress(s.Addr),
		})
	}
	if voters == 0 {
		return conf, errors.New("servers: none of them may vote")
	}
	return conf, nil
}

// recoveredGroup depends only on the old group and the set of servers, so all survivors get the
// same id.
func recoveredGroup(old groupID, conf raft.Configuration) (g groupID) {
	var lines []string
	for _, s := range conf.Servers {
		lines = append(lines, fmt.Sprintf("%s %s %s\n", s.ID, s.Address, s.Suffrage))
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(old.String() + "\n" + strings.Join(lines, "")))
	copy(g[:], sum[:])
	return g
}
