package manual

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"grapevine.example/cmd/commandline"
)

// place is a command with what may follow it.
type place struct {
	path  string // the commands that lead here, such as " backends drain"; "" is the program
	help  string
	subs  []*commandline.Command
	flags []*commandline.Value
	args  string // what its arguments are, as takes says
}

// places lists the program and every command below it, outermost first.
func places(app *commandline.Command) []place {
	var out []place
	var visit func(n *commandline.Command, path string)
	visit = func(n *commandline.Command, path string) {
		p := place{path: path, help: n.Help, subs: n.Commands}
		leaf := cmp.Or(n.Default, n)
		p.flags = leaf.AllFlags()
		for _, a := range leaf.Args {
			p.args = takes(a)
		}
		out = append(out, p)
		for _, c := range p.subs {
			visit(c, path+" "+c.Name)
		}
	}
	visit(app, "")
	return out
}

// takes says what completes a value: "file", "dir", words separated by spaces, or "" if only the user knows it.
func takes(v *commandline.Value) string {
	holder := v.PlaceHolder
	if v.Enum != nil {
		return strings.Join(v.Enum, " ")
	}
	switch {
	case holder == "FILE", v.Type == "existingfile":
		return "file"
	case holder == "DIR":
		return "dir"
	case strings.Contains(holder, "|"):
		words := strings.Split(holder, "|")
		return strings.Join(slices.DeleteFunc(words, func(w string) bool { return strings.ToLower(w) != w }), " ") // capitals stand for a value
	}
	return ""
}

// Bash returns a completion script for bash, 4.0 or later.
func Bash(app *commandline.Command) []byte {
	var words, values, known bytes.Buffer
	for _, p := range places(app) {
		var names, all []string
		for _, c := range p.subs {
			names = append(names, c.Name)
		}
		for _, f := range p.flags {
			all = append(all, "--"+f.Name)
			if f.IsBool() {
				continue
			}
			fmt.Fprintf(&values, "        '%s --%s')%s ;;\n", p.path, f.Name, bashValue(takes(f)))
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
func Zsh(app *commandline.Command) []byte {
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

func zshName(app *commandline.Command, path string) string {
	return "_" + app.Name + strings.ReplaceAll(path, " ", "_")
}

var zshHelp = strings.NewReplacer("[", `\[`, "]", `\]`, ":", `\:`)

func zshFlag(f *commandline.Value) string {
	flag := "--" + f.Name
	if f.Repeatable() {
		flag = "*" + flag
	}
	help := "[" + zshHelp.Replace(f.Help) + "]"
	if f.IsBool() {
		return single(flag + help)
	}
	action := " " // a value that only the user knows
	switch t := takes(f); t {
	case "":
	case "file":
		action = "_files"
	case "dir":
		action = "_files -/"
	default:
		action = "(" + t + ")"
	}
	return single(flag + "=" + help + ":" + zshHelp.Replace(strings.ToLower(f.Form())) + ":" + action)
}

// Fish returns a completion script for fish, 3.0 or later.
func Fish(app *commandline.Command) []byte {
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
			if f.Short != "" {
				fmt.Fprintf(&b, " -s %s", f.Short)
			}
			if !f.IsBool() {
				switch t := takes(f); t {
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
