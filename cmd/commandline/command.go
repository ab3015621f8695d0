package commandline

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Command is a command as the tags of a struct define it. The outermost one is the program.
//
// A field of the struct with the tag cmd is a command below it; its tag default:"withargs" makes it the Default. An embedded
// struct, or one with the tag embed, counts as if its fields stood in its place. Else a field with the tag arg is an argument, one
// with the tag name a flag, and any other has no meaning here.
type Command struct {
	Name, Help string
	Detail     string // more help, which the struct's method Help returns
	Parent     *Command
	Commands   []*Command // a command has either these or Args
	Default    *Command   // of Commands, runs if the line names none; nil: the line has to
	Flags      []*Value   // without those of Parent, which the command takes, too
	Args       []*Value

	fields any // pointer to the struct
}

// Value is a flag or an argument. Its members are tags of the field; a command or an argument without the tag name is called as the
// field.
type Value struct {
	Name, Help  string
	Short       string // letter of a flag, without the dash
	Default     string // as text; "" is the zero value
	Env         string // variable that replaces Default
	Enum        []string
	PlaceHolder string
	Group       string // title in help and manual
	Type        string // existingfile or existingdir, else ""
	Required    bool   // an argument is, unless it has the tag optional

	xor   string // of the flags with the same one a line may give one
	sep   string // between the elements of one flag; "" if each flag is one element
	field reflect.Value
}

// Group gives a title, such as "Engines:", to the flags with the tag group:"Key".
type Group struct{ Key, Title string }

// Model returns the definition of all commands, flags and arguments. commands points to the struct of the program's commands.
func (p Program) Model(commands any) *Command {
	root := &Command{Name: p.Name, Help: p.Description}
	builtin := func(name, short, help string) {
		root.Flags = append(root.Flags, &Value{Name: name, Short: short, Help: help, field: reflect.New(reflect.TypeFor[bool]()).Elem()})
	}
	builtin(helpFlag, "h", "Show context-sensitive help.")
	if p.Version != "" {
		builtin(versionFlag, "", "Print the version.")
	}
	root.define(reflect.ValueOf(commands).Elem(), p.Groups)
	return root
}

// define adds what the fields of a struct stand for.
func (c *Command) define(fields reflect.Value, groups []Group) {
	for i := range fields.NumField() {
		field, tag, v := fields.Type().Field(i), fields.Type().Field(i).Tag, fields.Field(i)
		has := func(key string) bool { _, ok := tag.Lookup(key); return ok }
		name := cmp.Or(tag.Get("name"), strings.ToLower(field.Name))
		switch {
		case field.Anonymous || has("embed"):
			c.define(v, groups)
		case has("cmd"):
			below := &Command{Name: name, Help: tag.Get("help"), Parent: c, fields: v.Addr().Interface()}
			if more, ok := below.fields.(interface{ Help() string }); ok {
				below.Detail = more.Help()
			}
			below.define(v, groups)
			c.Commands = append(c.Commands, below)
			if has("default") {
				c.Default = below
			}
		case has("arg"), has("name"):
			value := &Value{
				Name: name, Help: tag.Get("help"), Short: tag.Get("short"), Default: tag.Get("default"), Env: tag.Get("env"),
				PlaceHolder: tag.Get("placeholder"), Type: tag.Get("type"), Required: has("required"), xor: tag.Get("xor"), field: v,
			}
			if has("enum") {
				value.Enum = strings.Split(tag.Get("enum"), ",")
			}
			if has("group") {
				value.Group = groups[slices.IndexFunc(groups, func(g Group) bool { return g.Key == tag.Get("group") })].Title
			}
			if has("arg") {
				value.Required = !has("optional")
				c.Args = append(c.Args, value)
				continue
			}
			if value.Repeatable() {
				value.sep = strings.TrimPrefix(cmp.Or(tag.Get("sep"), ","), "none")
			}
			c.Flags = append(c.Flags, value)
		}
	}
}

// lineage is the program, the commands that lead to c, and c.
func (c *Command) lineage() []*Command {
	if c.Parent == nil {
		return []*Command{c}
	}
	return append(c.Parent.lineage(), c)
}

// FullPath is how a line names the command, such as "grapevine backends drain".
func (c *Command) FullPath() string {
	var names []string
	for _, level := range c.lineage() {
		names = append(names, level.Name)
	}
	return strings.Join(names, " ")
}

// Path is FullPath without the program.
func (c *Command) Path() string {
	_, path, _ := strings.Cut(c.FullPath(), " ")
	return path
}

// Summary is how the command is used, such as "grapevine backends drain <name> ... [flags]".
func (c *Command) Summary() string {
	words := []string{c.FullPath()}
	if len(c.Commands) > 0 {
		words = append(words, "<command>")
	}
	more := ""
	for _, f := range c.AllFlags() {
		switch {
		case f.Required:
			words = append(words, f.flag())
		case f.Name != helpFlag:
			more = "[flags]"
		}
	}
	for _, a := range c.Args {
		words = append(words, a.Argument())
	}
	return strings.TrimSpace(strings.Join(append(words, more), " "))
}

// Leaves are the commands below c without commands of their own.
func (c *Command) Leaves() (out []*Command) {
	for _, below := range c.Commands {
		if len(below.Commands) == 0 {
			out = append(out, below)
		}
		out = append(out, below.Leaves()...)
	}
	return out
}

// AllFlags are the flags that the command takes, those of its parents first.
func (c *Command) AllFlags() (out []*Value) {
	for _, level := range c.lineage() {
		out = append(out, level.Flags...)
	}
	return out
}

// IsBool says that the flag needs no value.
func (v *Value) IsBool() bool { return v.field.Kind() == reflect.Bool }

// Repeatable says that a line may give several elements.
func (v *Value) Repeatable() bool {
	return v.field.Kind() == reflect.Slice || v.field.Kind() == reflect.Map
}

// Argument is how help shows an argument, such as "[<label> ...]".
func (v *Value) Argument() string {
	text := "<" + v.Name + ">"
	if v.Repeatable() {
		text += " ..."
	}
	if !v.Required {
		text = "[" + text + "]"
	}
	return text
}

// flag is how help shows a flag, such as "--model=MODEL,...".
func (v *Value) flag() string {
	if v.IsBool() {
		return "--" + v.Name
	}
	return "--" + v.Name + "=" + v.Form()
}

// Form is what stands for the value of a flag, such as "MODEL,...".
func (v *Value) Form() string {
	form := v.PlaceHolder
	if form == "" && v.Default != "" {
		form = fmt.Sprintf("%q", v.Default)
	}
	if v.sep != "" && v.field.Kind() == reflect.Slice {
		return form + v.sep + "..."
	}
	return cmp.Or(form, strings.ToUpper(v.Name))
}
