package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"grapevine.example/node/admin"
)

// A rotation is install, use, remove.
type keysCmd struct {
	Generate keysGenerateCmd `cmd:"" help:"Make a key."`
	List     keysListCmd     `cmd:"" help:"Show which keys every node has, by their ids."`
	Install  keysInstallCmd  `cmd:"" help:"Let every node accept a key."`
	Use      keysUseCmd      `cmd:"" help:"Make every node encrypt with a key that all of them have."`
	Remove   keysRemoveCmd   `cmd:"" help:"Make every node forget a key that none uses."`
}

func (keysCmd) Help() string {
	return "To change the key of a running fleet: generate a new one, install it, see with list that every node has it, use it, and remove the old one. Nodes write the change to their --gossip-key-file."
}

type keysGenerateCmd struct {
	Out  string `name:"out" placeholder:"FILE" help:"Write it to a new file that only you may read, instead of to stdout."`
	JSON bool   `name:"json" help:"Print one JSON object."`
}

func (c *keysGenerateCmd) Run(s *streams) error {
	key, id := admin.NewGossipKey()
	text := key
	if c.Out != "" {
		if err := writeNew(c.Out, key+"\n"); err != nil {
			return err
		}
		key, text = "", fmt.Sprintf("key %s is in %s", id, c.Out)
	}
	if c.JSON {
		return printJSON(s.out, struct {
			Key  string `json:"key,omitempty"`
			ID   string `json:"id"`
			File string `json:"file,omitempty"`
		}{key, id, c.Out})
	}
	_, err := fmt.Fprintln(s.out, text)
	return err
}

// writeNew refuses to overwrite a file: a key in it may be the only copy.
func writeNew(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: no key is overwritten, for it may be the only copy; give another name", err)
	}
	if err != nil {
		return err
	}
	if _, err := f.WriteString(text); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

type keysListCmd struct {
	adminFlags
}

func (c *keysListCmd) Run(s *streams) error {
	return showKeys(&c.adminFlags, s, (*admin.Client).Keys)
}

type keysInstallCmd struct {
	File string `arg:"" placeholder:"FILE" help:"File with the key, as generate writes it; - is stdin. The first key in the file is used."`
	adminFlags
}

const maxKeyFile = 4 << 10

func (c *keysInstallCmd) Run(s *streams) error {
	text, err := readInput(s, c.File, maxKeyFile)
	if err != nil {
		return err
	}
	key, err := admin.ParseGossipKey(text)
	if err != nil {
		return usageError{fmt.Errorf("%s: %w", c.File, err)}
	}
	return showKeys(&c.adminFlags, s, func(client *admin.Client, ctx context.Context) (*admin.KeyList, error) {
		return client.InstallKey(ctx, key)
	})
}

type keysUseCmd struct {
	ID string `arg:"" placeholder:"ID" help:"Id of the key, as list shows it."`
	adminFlags
}

func (c *keysUseCmd) Run(s *streams) error {
	return showKeys(&c.adminFlags, s, func(client *admin.Client, ctx context.Context) (*admin.KeyList, error) {
		return client.UseKey(ctx, c.ID)
	})
}

type keysRemoveCmd struct {
	ID string `arg:"" placeholder:"ID" help:"Id of the key, as list shows it."`
	adminFlags
}

func (c *keysRemoveCmd) Run(s *streams) error {
	return showKeys(&c.adminFlags, s, func(client *admin.Client, ctx context.Context) (*admin.KeyList, error) {
		return client.RemoveKey(ctx, c.ID)
	})
}

// showKeys also fails if the operation failed at a node.
func showKeys(f *adminFlags, s *streams, ask func(*admin.Client, context.Context) (*admin.KeyList, error)) error {
	var failed error
	err := show(f, s, func(client *admin.Client, ctx context.Context) (*admin.KeyList, error) {
		list, err := ask(client, ctx)
		if err == nil && list.Error != "" {
			failed = errors.New(list.Error)
		}
		return list, err
	}, printKeyTable)
	return cmp.Or(err, failed)
}

func printKeyTable(out io.Writer, list *admin.KeyList) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tIN USE\tACCEPTED TOO\tKEPT")
	for _, n := range list.Nodes {
		if n.Error != "" {
			fmt.Fprintf(w, "%s\tfailed: %s\n", n.Node, n.Error)
			continue
		}
		others := slices.DeleteFunc(slices.Clone(n.Keys), func(id string) bool { return id == n.Primary })
		kept := "in its file"
		if !n.Persisted {
			kept = "until it stops"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", n.Node, cmp.Or(n.Primary, "-"), cmp.Or(strings.Join(others, " "), "-"), kept)
	}
	return w.Flush()
}
