package manual

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// place is a command with what may follow it.
type place struct {
	path  string // the commands that lead here, such as " backends drain"; "" is the program
	help  string
	subs  []*kong.Node
	flags []*kong.Flag
	args  string // what its arguments are, as takes says
}

// places lists the program and every command below it, outermost first.
func places(app *kong.Application) []place {
	var out []place
	var visit func(n *kong.Node, path string)
	visit = func(n *kong.Node, path string) {
		p := place{path: path, help: n.Help, subs: children(n)}
		leaf := n
		if n.DefaultCmd != nil {
			leaf = n.DefaultCmd
		}
		p.flags = flags(leaf)
		for _, a := range leaf.Positional {
			p.args = takes(a)
		}
		out = append(out, p)
		for _, c := range p.subs {
			visit(c, path+" "+c.Name)
		}
	}
	visit(app.Node, "")
	return out
}

// takes says what completes a value: "file", "dir", words separated by spaces, or "" if only the user knows it.
func takes(v *kong.Value) string {
	holder := v.Tag.PlaceHolder
	if v.Enum != "" {
		return strings.Join(v.EnumSlice(), " ")
	}
	switch {
	case holder == "FILE", holder == "PATH" && v.Tag.Type == "existingfile", v.Tag.Type == "existingfile":
		return "file"
	case holder == "DIR":
		return "dir"
	case strings.Contains(holder, "|"):
		words := strings.Split(holder, "|")
		return strings.Join(slices.DeleteFunc(words, func(w string) bool { return strings.ToLower(w) != w }), " ") // capitals stand for a value
	}
	return ""
}

func bare(f *kong.Flag) bool { return f.IsBool() || f.IsCounter() }

// Bash returns a completion script for bash, 4.0 or later.
func Bash(app *kong.Application) []byte {
	var words, values, known bytes.Buffer
	for _, p := range places(app) {
		var names, all []string
		for _, c := range p.subs {
			names = append(names, c.Name)
		}
		for _, f := range p.flags {
			all = append(all, "--"+f.Name)
			if bare(f) {
				continue
			}
			fmt.Fprintf(&values, "        '%s --%s')%s ;;\n", p.path, f.Name, bashValue(takes(f.Value)))
		}
		if p.path != "" {
			fmt.Fprintf(&known, "            '%s') path=$next ;;\n", p.path)
		}
		fmt.Fprintf(&words, "        '%s') commands='%s' flags='%s' args='%s' ;;\n", p.path, strings.Join(names, " "), strings.Join(all, " "), p.args)
	}
	return fmt.Appendf(nil, `# bash completion for %[1]s, made from the definition of its command line

_%[1]s() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} path= next i commands= flags= args=
    COMPREPLY=()
    # --flag=value arrives as three words.
    if [[ $cur == = ]]; then
        cur=
    elif [[ $prev == = && COMP_CWORD -gt 2 ]]; then
        prev=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    for ((i = 1; i < COMP_CWORD; i++)); do
        next="$path ${COMP_WORDS[i]}"
        case $next in
%[2]s        esac
    done
    case "$path $prev" in
%[3]s    esac
    case $path in
%[4]s    esac
    if [[ $cur == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$flags" -- "$cur")
    elif [[ $commands ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$commands" -- "$cur")
    elif [[ $args == file ]]; then
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
    fi
}
complete -F _%[1]s %[1]s
`, app.Name, known.Bytes(), values.Bytes(), words.Bytes())
}

func bashValue(takes string) string {
	switch takes {
	case "":
		return " return"
	case "file":
		return ` compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return`
	case "dir":
		return ` compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$cur"); return`
	}
	return fmt.Sprintf(` mapfile -t COMPREPLY < <(compgen -W '%s' -- "$cur"); return`, takes)
}

// Zsh returns a completion function for zsh, to be installed as _PROGRAM.
func Zsh(app *kong.Application) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "#compdef %s\n# Made from the definition of the command line.\n", app.Name)
	for _, p := range places(app) {
		fmt.Fprintf(&b, "\n%s() {\n", zshName(app, p.path))
		if len(p.subs) > 0 {
			b.WriteString("    local state line context\n    typeset -A opt_args\n")
		}
		b.WriteString("    _arguments -s")
		if len(p.subs) > 0 {
			b.WriteString(" -C")
		}
		for _, f := range p.flags {
			fmt.Fprintf(&b, " \\\n        %s", zshFlag(f))
		}
		switch {
		case len(p.subs) > 0:
			b.WriteString(" \\\n        ': :->command' '*:: :->rest'\n    case $state in\n        command)\n            local -a commands=(\n")
			for _, c := range p.subs {
				fmt.Fprintf(&b, "                %s\n", single(strings.ReplaceAll(c.Name, ":", `\:`)+":"+c.Help))
			}
			b.WriteString("            )\n            _describe command commands ;;\n        rest)\n            case $words[1] in\n")
			for _, c := range p.subs {
				fmt.Fprintf(&b, "                %s) %s ;;\n", c.Name, zshName(app, p.path+" "+c.Name))
			}
			b.WriteString("            esac ;;\n    esac\n")
		case p.args == "file":
			b.WriteString(" \\\n        '*:file:_files'\n")
		default:
			b.WriteString("\n")
		}
		b.WriteString("}\n")
	}
	fmt.Fprintf(&b, "\n_%s \"$@\"\n", app.Name)
	return b.Bytes()
}

func zshName(app *kong.Application, path string) string {
	return "_" + app.Name + strings.ReplaceAll(path, " ", "_")
}

var zshHelp = strings.NewReplacer("[", `\[`, "]", `\]`, ":", `\:`)

func zshFlag(f *kong.Flag) string {
	flag := "--" + f.Name
	if f.IsSlice() || f.IsMap() {
		flag = "*" + flag
	}
	help := "[" + zshHelp.Replace(f.Help) + "]"
	if bare(f) {
		return single(flag + help)
	}
	action := " " // a value that only the user knows
	switch t := takes(f.Value); t {
	case "":
	case "file":
		action = "_files"
	case "dir":
		action = "_files -/"
	default:
		action = "(" + t + ")"
	}
	return single(flag + "=" + help + ":" + zshHelp.Replace(strings.ToLower(f.FormatPlaceHolder())) + ":" + action)
}

// Fish returns a completion script for fish, 3.0 or later.
func Fish(app *kong.Application) []byte {
	var b bytes.Buffer
	all := places(app)
	fmt.Fprintf(&b, "# fish completion for %s, made from the definition of its command line\n\n", app.Name)
	fmt.Fprintf(&b, "function __%s_at\n    set -l path ''\n    for word in (commandline -opc)[2..-1]\n        switch \"$path $word\"\n            case", app.Name)
	for _, p := range all[1:] {
		fmt.Fprintf(&b, " %s", single(p.path))
	}
	b.WriteString("\n                set path \"$path $word\"\n        end\n    end\n    test \"$path\" = \"$argv[1]\"\nend\n\n")
	fmt.Fprintf(&b, "complete -c %s -f\n", app.Name)
	for _, p := range all {
		at := fmt.Sprintf(`complete -c %s -n "__%s_at '%s'"`, app.Name, app.Name, p.path)
		for _, c := range p.subs {
			fmt.Fprintf(&b, "%s -a %s -d %s\n", at, c.Name, fished(c.Help))
		}
		for _, f := range p.flags {
			fmt.Fprintf(&b, "%s -l %s", at, f.Name)
			if f.Short != 0 {
				fmt.Fprintf(&b, " -s %c", f.Short)
			}
			if !bare(f) {
				switch t := takes(f.Value); t {
				case "":
					b.WriteString(" -x")
				case "file":
					b.WriteString(" -r -F")
				case "dir":
					b.WriteString(" -x -a '(__fish_complete_directories)'")
				default:
					fmt.Fprintf(&b, " -x -a %s", single(t))
				}
			}
			fmt.Fprintf(&b, " -d %s\n", fished(f.Help))
		}
		if p.args == "file" {
			fmt.Fprintf(&b, "%s -F\n", at)
		}
	}
	return b.Bytes()
}

// single quotes a word for a POSIX shell.
func single(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

func fished(text string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(text) + "'"
}
