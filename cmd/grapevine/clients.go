package main

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"grapevine.example/node/admin"
	"grapevine.example/node/config"
)

type clientsCmd struct {
	List  clientsListCmd  `cmd:"" default:"withargs" help:"Show who may use a router (the default)."`
	Usage clientsUsageCmd `cmd:"" help:"Show what clients use, and what it costs."`
	New   clientsNewCmd   `cmd:"" help:"Make a key for a client."`
	Check clientsCheckCmd `cmd:"" help:"Check a clients file."`
}

func (clientsCmd) Help() string {
	return "Routers read the clients from their --clients-file, and again when it changes. To change a client's key without a gap, list the new hash beside the old one, and remove the old one when no client uses it."
}

type clientsListCmd struct {
	adminFlags
}

func (c *clientsListCmd) Run(s *streams) error {
	return show(&c.adminFlags, s, (*admin.Client).Clients, printClients)
}

func printClients(out io.Writer, list *admin.ClientList) error {
	if list.File == "" {
		_, err := fmt.Fprintln(out, "No clients_file: everybody who reaches the router may use all models, without limits.")
		return err
	}
	if list.Error != "" {
		fmt.Fprintf(out, "The file is wrong, and the clients that were in force stay: %s\n", list.Error)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "CLIENT\tKEYS\tMODELS\tPATHS\tPRIORITY\tWEIGHT\tTOKENS/MIN\tIN FLIGHT\tTRUSTED")
	for _, c := range list.Clients {
		keys := strconv.Itoa(c.Keys)
		if c.Anonymous {
			keys += ", or none"
		}
		trusted := "no"
		if c.Trusted {
			trusted = "yes"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%g\t%s\t%s\t%s\n", c.Name, keys, cmp.Or(strings.Join(c.Models, " "), "all"), cmp.Or(strings.Join(c.Paths, " "), "all"),
			c.Priority, c.Weight, limitText(c.TokensPerMinute), limitText(int64(c.InFlight)), trusted)
	}
	return w.Flush()
}

type clientsUsageCmd struct {
	adminFlags
}

func (c *clientsUsageCmd) Run(s *streams) error {
	return show(&c.adminFlags, s, (*admin.Client).Clients, printUsage)
}

func printUsage(out io.Writer, list *admin.ClientList) error {
	if list.File == "" {
		return printClients(out, list)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "Of their limits now, over the fleet:")
	fmt.Fprintln(w, "CLIENT\tTOKENS\tOF\tREQUESTS\tOF")
	for _, c := range list.Clients {
		used := "-"
		if c.TokensPerMinute > 0 {
			used = strconv.FormatInt(c.TokensUsed, 10)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\n", c.Name, used, limitText(c.TokensPerMinute), c.Requests, limitText(int64(c.InFlight)))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nAt router %s in %s:\n", list.Node, seconds(list.UptimeS))
	fmt.Fprintln(w, "CLIENT\tREQUESTS\tFAILED\tREFUSED\tPROMPT\tCACHED\tOUTPUT\tGPU TIME\tSAVED\tCOST\tTTFT P50\tP90\tTOKENS/S\tQUEUED\tP50\tP90\tREFUSED")
	for _, c := range list.Clients {
		h := &c.Here
		if h.Requests+h.Refused+h.QueueRefused == 0 {
			continue // a file may list thousands
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%d\n", c.Name, h.Requests, h.Failed, h.Refused, h.PromptTokens, h.CachedTokens, h.OutputTokens,
			seconds(h.PrefillS+h.DecodeS), seconds(h.SavedS), known(h.Cost, "%.2f"), known(h.TTFTP50, "%.2gs"), known(h.TTFTP90, "%.2gs"), known(h.SpeedP50, "%.3g"),
			h.Waited, known(h.WaitP50, "%.2gs"), known(h.WaitP90, "%.2gs"), h.QueueRefused)
	}
	return w.Flush()
}

// known formats a figure of which 0 means that there is none.
func known(v float64, format string) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf(format, v)
}

func limitText(n int64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatInt(n, 10)
}

type clientsNewCmd struct {
	Name string `arg:"" placeholder:"NAME" help:"Name of the client, which labels metrics and logs."`
	JSON bool   `name:"json" help:"Print one JSON object."`
}

func (c *clientsNewCmd) Run(s *streams) error {
	key, hash := config.NewClientKey()
	line := fmt.Sprintf("- {name: %s, key_sha256: %s}", c.Name, hash)
	if _, err := config.ParseClients("", []byte("anonymous: refuse\nclients:\n"+line+"\n")); err != nil {
		return usageError{err}
	}
	if c.JSON {
		return printJSON(s.out, struct {
			Name string `json:"name"`
			Key  string `json:"key"`
			Hash string `json:"key_sha256"`
		}{c.Name, key, hash})
	}
	_, err := fmt.Fprintf(s.out, "%s\n\nThis key is shown once: give it to the client. The routers' clients file needs its hash, under clients:\n\n  %s\n", key, line)
	return err
}

type clientsCheckCmd struct {
	Path string `arg:"" name:"file" placeholder:"FILE" help:"Clients file; - is stdin."`
	JSON bool   `name:"json" help:"Print one JSON object."`
}

func (c *clientsCheckCmd) Run(s *streams) error {
	text, err := readInput(s, c.Path, config.MaxClientsFile)
	if err != nil {
		return err
	}
	book, err := config.ParseClients(c.Path, text)
	if err != nil {
		return err
	}
	anonymous := "refused"
	if book.Anonymous != nil {
		anonymous = "those of " + book.Anonymous.Name
	}
	if c.JSON {
		return printJSON(s.out, struct {
			Clients   int    `json:"clients"`
			Anonymous string `json:"anonymous"`
		}{len(book.Clients), anonymous})
	}
	_, err = fmt.Fprintf(s.out, "%s: %d clients; requests without a key are %s\n", c.Path, len(book.Clients), anonymous)
	return err
}
