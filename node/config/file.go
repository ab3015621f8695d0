package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"grapevine.example/gossip/member"
	"grapevine.example/node/config/nearest"
	"grapevine.example/proxy/policy"
	"grapevine.example/proxy/rules"
)

// maxConfigFile holds thousands of backends.
const maxConfigFile = 4 << 20

// Error is one mistake and its remedy.
type Error struct {
	File   string // "" if none
	Line   int    // 1-based; 0 unknown
	Key    string // the setting; "" for the whole file
	Reason string
	Remedy string
}

func (e *Error) Error() string {
	var b strings.Builder
	if e.File != "" {
		b.WriteString(e.File)
		if e.Line > 0 {
			fmt.Fprintf(&b, ":%d", e.Line)
		}
		b.WriteString(": ")
	}
	if e.Key != "" {
		b.WriteString(e.Key + ": ")
	}
	b.WriteString(e.Reason)
	if e.Remedy != "" {
		b.WriteString(": " + e.Remedy)
	}
	return b.String()
}

// Mistakes lists the mistakes that err joins.
func Mistakes(err error) (all []Error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			all = append(all, Mistakes(e)...)
		}
		return all
	}
	var c *Error
	if errors.As(err, &c) {
		return []Error{*c}
	}
	return []Error{{Reason: err.Error()}}
}

// Load reads a YAML file over the defaults; the error joins all mistakes, each a *Error. lines maps
// keys to lines, for Validate.
func Load(path string) (cfg Config, lines map[string]int, err error) {
	f, err := os.Open(path)
	if err != nil {
		return Config{}, nil, fmt.Errorf("config: %w", err)
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxConfigFile+1))
	if err != nil {
		return Config{}, nil, fmt.Errorf("config: %w", err)
	}
	if len(text) > maxConfigFile {
		return Config{}, nil, &Error{File: path, Reason: fmt.Sprintf("larger than %s", Bytes(maxConfigFile)), Remedy: "is this a configuration file?"}
	}
	if cfg, lines, err = Parse(path, text); err != nil {
		return cfg, lines, err
	}
	if key := cfg.inlineSecret(); key != "" {
		if err := member.CheckSecret(f); err != nil {
			return Config{}, nil, &Error{File: path, Line: lines[key], Key: key, Reason: "holds a secret, and " + err.Error(), Remedy: "or move the secret to " + secretFiles[key]}
		}
	}
	return cfg, lines, nil
}

// secretFiles maps keys of secrets to settings that name a file.
var secretFiles = map[string]string{"secret": "secret_file", "backends": "api_key_file"}

func (c *Config) inlineSecret() string {
	switch {
	case c.Secret != "":
		return "secret"
	case slices.ContainsFunc(c.Backends, func(b Backend) bool { return b.APIKey != "" }):
		return "backends"
	}
	return ""
}

// Parse is Load for text; name stands for the file in errors.
func Parse(name string, text []byte) (cfg Config, lines map[string]int, err error) {
	cfg, lines = Default(), make(map[string]int)
	var errs []error
	top, err := oneDocument(text)
	if err != nil {
		errs = []error{err}
	} else if top != nil {
		errs = decodeMapping(top, "", cfg.fields(), lines)
	}
	for _, e := range errs {
		var c *Error
		if errors.As(e, &c) {
			c.File = name
		}
	}
	return cfg, lines, errors.Join(errs...)
}

func (c *Config) fields() (fields []field) {
	v := reflect.ValueOf(c).Elem()
	for _, s := range Settings() {
		fields = append(fields, field{s.Key, v.Field(s.field).Addr().Interface()})
	}
	return fields
}

type field struct {
	key string
	dst any // pointer
}

func (f field) kind() kind { return kinds[reflect.TypeOf(f.dst).Elem()] }

// decodeMapping fills lines unless nil. yaml's strict mode skips types with custom decoding and
// offers no remedy.
func decodeMapping(n *yaml.Node, path string, fields []field, lines map[string]int) []error {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return nil // only comments
	}
	if n.Kind != yaml.MappingNode {
		return []error{&Error{Line: n.Line, Key: path, Reason: "not a mapping", Remedy: "write KEY: VALUE lines"}}
	}
	var errs []error
	seen := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		key := join(path, k.Value)
		if first, ok := seen[k.Value]; ok {
			errs = append(errs, &Error{Line: k.Line, Key: key, Reason: fmt.Sprintf("given twice, first in line %d", first), Remedy: "keep one"})
			continue
		}
		seen[k.Value] = k.Line
		f, ok := findField(fields, k.Value)
		if !ok {
			errs = append(errs, &Error{Line: k.Line, Key: key, Reason: "unknown key", Remedy: remedyUnknown(k.Value, fields)})
			continue
		}
		if lines != nil {
			lines[k.Value] = k.Line
		}
		errs = append(errs, decodeValue(v, key, f)...)
	}
	return errs
}

func decodeValue(v *yaml.Node, key string, f field) []error {
	if v.Kind == yaml.AliasNode {
		v = v.Alias
	}
	switch dst := f.dst.(type) {
	case *yaml.Node:
		*dst = *v
		return nil
	case *[]Backend:
		return decodeList(v, key, f, dst, decodeBackend)
	case *[]Rule:
		errs := decodeList(v, key, f, dst, decodeRule)
		if len(errs) == 0 {
			if i, err := rules.Check(Specs(*dst), policy.Strategies()); err != nil {
				errs = append(errs, &Error{Line: v.Content[i].Line, Key: fmt.Sprintf("%s[%d]", key, i), Reason: err.Error()})
			}
		}
		return errs
	case *time.Duration:
		if v.Kind == yaml.ScalarNode && v.Value == "0" {
			*dst = 0 // needs no unit, as in flags
			return nil
		}
	}
	if v.Kind == yaml.ScalarNode && v.Tag == "!!null" {
		return []error{&Error{Line: v.Line, Key: key, Reason: "has no value", Remedy: "write " + f.kind().example + ", or remove the key"}}
	}
	if err := v.Decode(f.dst); err != nil {
		reason := "not a " + f.kind().name
		if v.Kind == yaml.ScalarNode {
			reason = fmt.Sprintf("%q is not a %s", v.Value, f.kind().name)
		}
		return []error{&Error{Line: v.Line, Key: key, Reason: reason, Remedy: "write " + f.kind().example}}
	}
	return nil
}

func decodeList[T any](v *yaml.Node, key string, f field, dst *[]T, decode func(*yaml.Node, string) (T, []error)) []error {
	if v.Kind != yaml.SequenceNode {
		return []error{&Error{Line: v.Line, Key: key, Reason: "not a list", Remedy: "write " + f.kind().example}}
	}
	var errs []error
	for i, n := range v.Content {
		if n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		entry, bad := decode(n, fmt.Sprintf("%s[%d]", key, i))
		*dst, errs = append(*dst, entry), append(errs, bad...)
	}
	return errs
}

func findField(fields []field, key string) (field, bool) {
	for _, f := range fields {
		if f.key == key {
			return f, true
		}
	}
	return field{}, false
}

func join(path, key string) string { return strings.TrimPrefix(path+"."+key, ".") }

func remedyUnknown(key string, fields []field) string {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.key
	}
	if name := nearest.Name(strings.ReplaceAll(strings.ToLower(key), "-", "_"), names); name != "" {
		return fmt.Sprintf("did you mean %s?", name)
	}
	return "known keys are " + strings.Join(names, ", ")
}
