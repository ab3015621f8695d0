package raftstore

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// recoverDeadline bounds one write; only an operator waits.
const recoverDeadline = time.Minute

type Server struct {
	ID    string `json:"id"`
	Addr  string `json:"address"`
	Voter bool   `json:"voter"`
}

// Survivor summarizes one node's data.
type Survivor struct {
	ID        string   `json:"id"`
	Group     string   `json:"group"`      // hex; empty without a group
	LastIndex uint64   `json:"last_index"` // the highest index has lost the least
	Version   uint64   `json:"version"`    // of the committed state
	Backends  int      `json:"backends"`   // of the committed state
	Servers   []Server `json:"servers"`    // newest configuration, committed or not
}

// Inspect reads the data of a stopped node and changes nothing.
func Inspect(dir string) (sv Survivor, err error) {
	defer func() { err = in("inspect "+dir, err) }()
	d, err := openExisting(dir)
	if err != nil {
		return Survivor{}, err
	}
	defer d.close(recoverDeadline)
	id, err := loadIdentity(d)
	if err != nil {
		return Survivor{}, err
	}
	sv = Survivor{ID: id.ID, Group: id.Group.String(), Servers: []Server{}}
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

// newestConfiguration is from the log, else from the snapshot; last is the highest index.
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

// openExisting creates nothing, because a wrong directory is a likely mistake.
func openExisting(dir string) (*disk, error) {
	if _, err := os.Stat(filepath.Join(dir, dataFile)); err != nil {
		return nil, err
	}
	return openDisk(dir, recoverDeadline, nil, &writeCounts{})
}

// Recover forces new servers on the data in dir after the permanent loss of a majority. Run it with
// the same servers on each survivor while all nodes are stopped; empty lost nodes before they join.
// DESIGN.md says what the group then waits for.
func Recover(dir string, servers []Server) (err error) {
	defer func() { err = in("recover "+dir, err) }()
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
	// The identity comes first: the new servers must not appear under the old group.
	if err := saveIdentity(d, recoveredIdentity(id, conf)); err != nil {
		return err
	}
	rc := raft.DefaultConfig()
	rc.LocalID = raft.ServerID(id.ID)
	rc.Logger = hclog.NewNullLogger()
	machine := newFSM(func(*State) {}, func(string) {})
	_, trans := raft.NewInmemTransport("recover")
	return raft.RecoverCluster(rc, machine, logs, logs, snaps, trans, conf)
}

// recoveredIdentity recovers unproven data from its original group again, to allow corrections.
func recoveredIdentity(id identity, conf raft.Configuration) identity {
	given := id.Given
	if !id.Unproven || len(given) == 0 {
		given = append(slices.Clone(given), id.Group)
	}
	if len(given) > maxGiven { // the first one stays: see Store.Origin
		given = slices.Delete(given, 1, 1+len(given)-maxGiven)
	}
	return identity{
		ID: id.ID, Group: groupOf(given[len(given)-1].String(), conf), Given: given, Size: len(conf.Servers), Unproven: true,
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
