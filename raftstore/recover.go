package raftstore

import "errors"

// Server is one member of a group's configuration.
type Server struct {
	ID    string `json:"id"`
	Addr  string `json:"address"`
	Voter bool   `json:"voter"`
}

// Recover forces a new configuration on the data in dir while no process uses
// it, for a group that has lost its majority for good.
func Recover(dir string, servers []Server) error {
	return errors.New("raftstore: not built yet")
}
