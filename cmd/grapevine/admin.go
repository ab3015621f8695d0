package main

import (
	"context"
	"time"

	"grapevine/node"
)

// adminFlags are shared by the commands that ask a running router.
type adminFlags struct {
	Admin string `name:"admin" env:"GRAPEVINE_ADMIN" default:"127.0.0.1:8081" placeholder:"ADDR" help:"Admin API of the router."`
	Token string `name:"admin-token" env:"GRAPEVINE_ADMIN_TOKEN" placeholder:"TOKEN" help:"Token of the admin API. Prefer the file: a flag is visible in the process list."`
	File  string `name:"admin-token-file" env:"GRAPEVINE_ADMIN_TOKEN_FILE" placeholder:"FILE" help:"File that holds the token."`
	JSON  bool   `name:"json" help:"Print one JSON object."`
}

// adminTimeout bounds one question. Everything behind it is in memory but the keys, for which a router asks all the others:
// it must have the time to say which of them does not answer.
const adminTimeout = node.KeysTimeout + 2*time.Second

func (f *adminFlags) client() (*node.Client, context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	return node.NewClient(f.Admin).WithToken(f.Token, f.File), ctx, cancel
}
