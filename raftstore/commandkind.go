package raftstore

// commandKind is the tag of a command in the log. Values are never reused.
type commandKind uint8

const (
	kindAddBackends commandKind = iota + 1
	kindUpdateBackend
	kindSetBackendState
	kindNewGeneration
	kindRemoveBackends
	kindSetRules
	kindSetHot
	kindSetSwitches
	kindSetConstants
)

func (AddBackends) kind() commandKind     { return kindAddBackends }
func (UpdateBackend) kind() commandKind   { return kindUpdateBackend }
func (SetBackendState) kind() commandKind { return kindSetBackendState }
func (NewGeneration) kind() commandKind   { return kindNewGeneration }
func (RemoveBackends) kind() commandKind  { return kindRemoveBackends }
func (SetRules) kind() commandKind        { return kindSetRules }
func (SetHot) kind() commandKind          { return kindSetHot }
func (SetSwitches) kind() commandKind     { return kindSetSwitches }
func (SetConstants) kind() commandKind    { return kindSetConstants }
