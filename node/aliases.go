package node

import "grapevine/node/config"

type (
	Config  = config.Config
	Backend = config.Backend
	Rule    = config.Rule
)
