package config

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Setting is a field of Config with the names by which it can be set.
type Setting struct {
	Key     string // in the YAML file
	Flag    string // on the command line, without the dashes
	Env     string // in the environment
	Default string // as text; "" is the zero value
	Help    string
	Group   string
	Reload  string // what Reload applies: "yes", "file", "credentials" or ""
	Kind    string // form of a value, such as "duration"

	field int // index in Config
}

// Values of Setting.Reload. Empty: a change waits for the next start.
const (
	ReloadValue = "yes"         // the new value is applied
	ReloadFile  = "file"        // the file is read again; another file name waits
	ReloadKeys  = "credentials" // of backends: api_key and the content of api_key_file and ca_file
)

func Settings() []Setting {
	t := reflect.TypeFor[Config]()
	out := make([]Setting, 0, t.NumField())
	for i := range t.NumField() {
		f := t.Field(i)
		key := f.Tag.Get("yaml")
		if key == "" || key == "-" {
			continue
		}
		out = append(out, Setting{
			Key: key, Flag: f.Tag.Get("name"), Env: f.Tag.Get("env"),
			Default: f.Tag.Get("default"), Help: f.Tag.Get("help"), Group: f.Tag.Get("group"), Reload: f.Tag.Get("reload"),
			Kind: kindName(f.Type), field: i,
		})
	}
	return out
}

func Default() Config {
	var c Config
	v := reflect.ValueOf(&c).Elem()
	for _, s := range Settings() {
		if s.Default == "" {
			continue
		}
		if err := yaml.Unmarshal([]byte(quoteText(v.Field(s.field), s.Default)), v.Field(s.field).Addr().Interface()); err != nil {
			panic(fmt.Sprintf("config: default of %s: %v", s.Key, err))
		}
	}
	return c
}

func quoteText(v reflect.Value, text string) string {
	if v.Kind() == reflect.String {
		return fmt.Sprintf("%q", text)
	}
	return text
}

// Overlay copies the settings with the given keys from another configuration.
func (c *Config) Overlay(from Config, keys ...string) {
	dst, src := reflect.ValueOf(c).Elem(), reflect.ValueOf(&from).Elem()
	byKey := make(map[string]int)
	for _, s := range Settings() {
		byKey[s.Key] = s.field
	}
	for _, k := range keys {
		i, ok := byKey[k]
		if !ok {
			panic("config: no setting " + k)
		}
		dst.Field(i).Set(src.Field(i))
	}
}

// Differing lists the keys in which two validated configurations differ.
func (c *Config) Differing(other Config) (keys []string) {
	a, b := reflect.ValueOf(c).Elem(), reflect.ValueOf(&other).Elem()
	for _, s := range Settings() {
		if !reflect.DeepEqual(a.Field(s.field).Interface(), b.Field(s.field).Interface()) {
			keys = append(keys, s.Key)
		}
	}
	return keys
}

func kindName(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[time.Duration]():
		return "duration"
	case reflect.TypeFor[Bytes]():
		return "size in bytes"
	case reflect.TypeFor[[]Backend]():
		return "list of backends"
	case reflect.TypeFor[[]Rule]():
		return "list of rules"
	case reflect.TypeFor[map[string]float64]():
		return "map of numbers"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "boolean"
	case reflect.Int, reflect.Int64:
		return "whole number"
	case reflect.Float64:
		return "number"
	case reflect.Slice:
		return "list of " + strings.TrimPrefix(kindName(t.Elem()), "list of ") + "s"
	default:
		return "text"
	}
}

func example(kind string) string {
	switch kind {
	case "duration":
		return "30s, 5m or 1h30m"
	case "size in bytes":
		return "65536, 64KiB or 1GiB"
	case "boolean":
		return "true or false"
	case "whole number":
		return "3"
	case "number":
		return "0.25"
	case "map of numbers":
		return "{prefix: 2, load: 1}"
	case "list of backends":
		return "a list of URLs, or of mappings with the key url"
	case "list of rules":
		return "a list of mappings with the key strategy"
	case "list of texts":
		return "[a, b]"
	default:
		return `"text"`
	}
}
