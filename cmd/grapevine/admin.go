package main

import (
	"context"
	"io"
	"time"

	"grapevine.example/node/admin"
)

type adminFlags struct {
	Admin string `name:"admin" env:"GRAPEVINE_ADMIN" default:"127.0.0.1:8081" placeholder:"ADDR" help:"Admin API of the router."`
	Token string `name:"admin-token" env:"GRAPEVINE_ADMIN_TOKEN" placeholder:"TOKEN" help:"Token of the admin API. Prefer the file: a flag is visible in the process list."`
	File  string `name:"admin-token-file" env:"GRAPEVINE_ADMIN_TOKEN_FILE" placeholder:"FILE" help:"File that holds the token."`
	JSON  bool   `name:"json" help:"Print one JSON object."`
}

// adminTimeout lets a router report others that do not answer.
const adminTimeout = admin.KeysTimeout + 2*time.Second

func (f *adminFlags) client() (*admin.Client, context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	return admin.NewClient(f.Admin).WithToken(f.Token, f.File), ctx, cancel
}

// show calls the admin API and prints its answer, as JSON or by print.
func show[T any](f *adminFlags, s *streams, ask func(*admin.Client, context.Context) (T, error), print func(io.Writer, T) error) error {
	client, ctx, cancel := f.client()
	defer cancel()
	answer, err := ask(client, ctx)
	switch {
	case err != nil:
		return err
	case f.JSON:
		return printJSON(s.out, answer)
	}
	return print(s.out, answer)
}
