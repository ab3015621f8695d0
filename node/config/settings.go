package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
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
			Kind: kinds[f.Type].name, field: i,
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

// Overlay copies one setting of another configuration.
func (c *Config) Overlay(from Config, s Setting) {
	reflect.ValueOf(c).Elem().Field(s.field).Set(reflect.ValueOf(from).Field(s.field))
}

// maxShown bounds, in bytes, what Text shows of a value.
const maxShown = 200

// Text shows the value that a configuration has, cut to some 200 bytes. It shows no secret, and of backends only the names.
func (s Setting) Text(c *Config) string {
	var parts []string
	switch v := reflect.ValueOf(c).Elem().Field(s.field).Interface().(type) {
	case string:
		if parts = []string{v}; secretFiles[s.Key] != "" && v != "" {
			parts[0] = "(hidden)"
		}
	case []string:
		parts = v
	case []Backend:
		for i := range v {
			parts = append(parts, v[i].Name)
		}
	case []Rule:
		for i := range v {
			parts = append(parts, v[i].text())
		}
	case map[string]float64:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, fmt.Sprintf("%s=%v", name, v[name]))
		}
	default:
		parts = []string{fmt.Sprint(v)}
	}
	text := strings.Join(parts, " ")
	if len(text) > maxShown {
		text = strings.ToValidUTF8(text[:maxShown], "") + "..."
	}
	return text
}

// Differing lists the keys in which two validated configurations differ.
func (c *Config) Differing(other Config) (keys []string) {
	a, b := reflect.ValueOf(*c), reflect.ValueOf(other)
	for _, s := range Settings() {
		if !reflect.DeepEqual(a.Field(s.field).Interface(), b.Field(s.field).Interface()) {
			keys = append(keys, s.Key)
		}
	}
	return keys
}

// kind is the form of a value, with an example for remedies.
type kind struct{ name, example string }

var kinds = map[reflect.Type]kind{
	reflect.TypeFor[string]():             {"text", `"text"`},
	reflect.TypeFor[bool]():               {"boolean", "true or false"},
	reflect.TypeFor[int]():                {"whole number", "3"},
	reflect.TypeFor[float64]():            {"number", "0.25"},
	reflect.TypeFor[Bytes]():              {"size in bytes", "65536, 64KiB or 1GiB"},
	reflect.TypeFor[time.Duration]():      {"duration", "30s, 5m or 1h30m"},
	reflect.TypeFor[[]string]():           {"list of texts", "[a, b]"},
	reflect.TypeFor[[]Backend]():          {"list of backends", "a list of URLs, or of mappings with the key url"},
	reflect.TypeFor[[]Rule]():             {"list of rules", "a list of mappings with the key strategy"},
	reflect.TypeFor[map[string]float64](): {"map of numbers", "{prefix: 2, load: 1}"},
	reflect.TypeFor[amount]():             {"whole number", "20000, 20k or 2M"},
}
