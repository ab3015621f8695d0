package config

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"grapevine.example/raftstore"
)

// Source is a checked entry of backends_from.
type Source struct {
	Entry string // as configured: file:PATH, dns:NAME:PORT or srv:NAME
	Kind  raftstore.Source
	Rest  string // Entry without its first word and ranks
	Ranks string // "" or, of a name in DNS, #ranks=N: each engine has N data-parallel ranks
}

func ParseSource(entry string) (Source, error) {
	kind, rest, _ := strings.Cut(entry, ":")
	s := Source{Entry: entry, Rest: rest}
	if at := strings.IndexByte(rest, '#'); at >= 0 && kind != "file" {
		rest, s.Ranks = rest[:at], rest[at:]
		s.Rest = rest
		b := Backend{URL: "http://engine" + s.Ranks}
		if _, err := b.Each(); err != nil {
			return Source{}, err
		}
	}
	switch {
	case kind == "file" && rest != "":
		s.Kind = raftstore.File
	case kind == "srv" && rest != "" && !strings.ContainsAny(rest, ":/ "):
		s.Kind = raftstore.DNS
	case kind == "dns":
		s.Kind = raftstore.DNS
		host, port, err := net.SplitHostPort(rest)
		if n, errPort := strconv.ParseUint(port, 10, 16); err != nil || errPort != nil || n == 0 || host == "" || strings.ContainsAny(host, "/ ") {
			return Source{}, errors.New("want dns:NAME:PORT")
		}
	default:
		return Source{}, errors.New("want file:PATH, dns:NAME:PORT or srv:_SERVICE._tcp.NAME")
	}
	return s, nil
}

// ParseBackends reads one backend per line in the form of --backend, or YAML. One mistake rejects
// all.
func ParseBackends(name string, text []byte) (list []Backend, err error) {
	var errs []error
	place := func(line int, err error) {
		var c *Error
		if errors.As(err, &c) {
			c.File = name
			errs = append(errs, c)
			return
		}
		errs = append(errs, &Error{File: name, Line: line, Reason: err.Error()})
	}
	names := make(map[string]int)
	addOne := func(b Backend, line int) {
		switch first, twice := names[b.Name]; {
		case b.APIKey != "" || b.APIKeyFile != "" || b.CAFile != "" || b.Events != "":
			place(line, fmt.Errorf("%s: api_key, api_key_file, ca_file and events are each node's own: give them under backends in its configuration, with this name", b.Name))
		case twice:
			place(line, fmt.Errorf("%s is in line %d already", b.Name, first))
		default:
			names[b.Name] = line
			list = append(list, b)
		}
	}
	add := func(b Backend, line int) {
		each, err := b.Each()
		if err != nil {
			place(line, err)
		}
		for _, b := range each {
			addOne(b, line)
		}
	}
	if isYAML(text) {
		root, err := oneDocument(text)
		switch {
		case err != nil:
			place(0, err)
			return nil, errors.Join(errs...)
		case root == nil:
			return nil, nil
		}
		if root.Kind == yaml.MappingNode && len(root.Content) == 2 && root.Content[0].Value == "backends" {
			root = root.Content[1]
		}
		if root.Kind != yaml.SequenceNode {
			return nil, &Error{File: name, Line: root.Line, Reason: "not a list of backends", Remedy: "write - URL lines, or backends: and such a list"}
		}
		for i, n := range root.Content {
			b, bad := decodeBackend(n, "backends["+strconv.Itoa(i)+"]")
			for _, err := range bad {
				place(n.Line, err)
			}
			if len(bad) == 0 {
				add(b, n.Line)
			}
		}
		return list, errors.Join(errs...)
	}
	for i, line := range bytes.Split(text, []byte("\n")) {
		if line = bytes.TrimSpace(line); len(line) == 0 || line[0] == '#' {
			continue
		}
		var b Backend
		if err := b.UnmarshalText(line); err != nil {
			place(i+1, err)
			continue
		}
		add(b, i+1)
	}
	return list, errors.Join(errs...)
}

func isYAML(text []byte) bool {
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		return !strings.HasPrefix(line, "http://") && !strings.HasPrefix(line, "https://")
	}
	return false
}
