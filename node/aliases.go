package node

import "grapevine/node/config"

// Config configures a node; see config.Default.
type (
	Config  = config.Config
	Backend = config.Backend
	Rule    = config.Rule
)
