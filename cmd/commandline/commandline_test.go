package commandline

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

type letter byte

func (l *letter) UnmarshalText(text []byte) error {
	if len(text) != 1 {
		return fmt.Errorf("%q is not one letter", text)
	}
	*l = letter(text[0])
	return nil
}

type shared struct {
	Place string `name:"place" env:"COMMANDLINE_TEST_PLACE" default:"here" help:"Place."`
}

type showCmd struct {
	shared
	Ignored int // like every field without the tag name or arg

	Loud bool `name:"loud" short:"l" help:"Loud."`
}

type addCmd struct {
	shared  `embed:""`
	Names   []string           `arg:"" name:"name" help:"Names."`
	List    []string           `name:"list" help:"A list."`
	Whole   []string           `name:"whole" sep:"none" help:"Not cut."`
	Letters []letter           `name:"letter" sep:" " help:"Letters."`
	Weights map[string]float64 `name:"weight" help:"Weights."`
	Port    uint16             `name:"port" help:"A port."`
	At      *int               `name:"at" help:"A place."`
	Wait    time.Duration      `name:"wait" default:"1m30s" help:"A duration."`
	Kind    string             `name:"kind" enum:"a,b" default:"a" group:"more" help:"A kind."`
	On      bool               `name:"on" xor:"switch" help:"On."`
	Off     bool               `name:"off" xor:"switch" help:"Off."`
	File    string             `name:"file" type:"existingfile" help:"A file."`
}

type things struct {
	Things struct {
		Show showCmd `cmd:"" default:"withargs" help:"Show."`
		Add  addCmd  `cmd:"" help:"Add."`
	} `cmd:"" help:"Things."`
	Need struct {
		Dir string `name:"dir" required:"" placeholder:"DIR" help:"A directory."`
	} `cmd:"" help:"Needs a flag."`
}

var program = Program{Name: "test", Description: "A test.", Version: "test 1", Groups: []Group{{"more", "More:"}}}

func TestParse(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	at := -1
	for _, tc := range []struct {
		name string
		args []string
		want addCmd // of flags, and Names; the defaults are filled in
	}{
		{"arguments among flags", []string{"x", "--on", "y"}, addCmd{Names: []string{"x", "y"}, On: true}},
		{"arguments behind --", []string{"--on", "--", "-x", "--off"}, addCmd{Names: []string{"-x", "--off"}, On: true}},
		{"a dash is an argument", []string{"-"}, addCmd{Names: []string{"-"}}},
		{"a list in one flag and several", []string{"x", "--list=a,b", "--list", `c\,d\e`, "--list=,"}, addCmd{Names: []string{"x"}, List: []string{"a", "b", "c,d\\e", ""}}},
		{"a list that is not cut", []string{"x", "--whole", "a,b", "--whole=c d"}, addCmd{Names: []string{"x"}, Whole: []string{"a,b", "c d"}}},
		{"a list of a type that reads text", []string{"x", "--letter", "a b"}, addCmd{Names: []string{"x"}, Letters: []letter{'a', 'b'}}},
		{"a map", []string{"x", "--weight", "a=1,b=0.5", "--weight", "b=2"}, addCmd{Names: []string{"x"}, Weights: map[string]float64{"a": 1, "b": 2}}},
		{"numbers", []string{"x", "--port", "65535", "--at=-1", "--wait", "2s"}, addCmd{Names: []string{"x"}, Port: 65535, At: &at, Wait: 2 * time.Second}},
		{"the last one counts", []string{"x", "--kind", "a", "--kind", "b", "--on=no"}, addCmd{Names: []string{"x"}, Kind: "b"}},
		{"a file", []string{"x", "--file", file}, addCmd{Names: []string{"x"}, File: file}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var c things
			call, err := program.Parse(&c, append([]string{"things", "add"}, tc.args...))
			if err != nil {
				t.Fatal(err)
			}
			tc.want.Place = "here"
			if tc.want.Wait == 0 {
				tc.want.Wait = 90 * time.Second
			}
			if tc.want.Kind == "" {
				tc.want.Kind = "a"
			}
			if !reflect.DeepEqual(c.Things.Add, tc.want) || call.Command.FullPath() != "test things add" {
				t.Errorf("%s: %+v\nwant %+v", call.Command.FullPath(), c.Things.Add, tc.want)
			}
		})
	}
}

func TestSources(t *testing.T) {
	for _, tc := range []struct {
		args, given []string
		env, want   string
	}{
		{nil, nil, "", "here"},
		{nil, nil, "there", "there"},
		{[]string{"--place", "line", "-l"}, []string{"place", "loud"}, "there", "line"},
		{[]string{"show", "--loud=false", "--place=here"}, []string{"loud", "place"}, "there", "here"},
	} {
		if tc.env != "" {
			t.Setenv("COMMANDLINE_TEST_PLACE", tc.env)
		}
		var c things
		call, err := program.Parse(&c, append([]string{"things"}, tc.args...))
		if err != nil || c.Things.Show.Place != tc.want || !reflect.DeepEqual(call.Given, tc.given) || call.Command.Path() != "things show" {
			t.Errorf("%q: %s, place %q, given %q, %v; want %q, %q", tc.args, call.Command.Path(), c.Things.Show.Place, call.Given, err, tc.want, tc.given)
		}
	}
}

func TestUsageErrors(t *testing.T) {
	for _, tc := range []struct{ args, want, help string }{
		{"", `expected one of "things", "need"`, ""},
		{"thing", `unexpected argument thing, did you mean "things"?: the commands of test are things, need`, ""},
		{"things ad", "unexpected argument ad: the commands of test things are show, add", " things"},
		{"things --lod", `unknown flag --lod, did you mean "--loud"?`, " things"},
		{"things -x", "unknown flag -x", " things"},
		{"things show x", "unexpected argument x", " things show"},
		{"things add", `expected "<name> ..."`, " things add"},
		{"things add x --o", `unknown flag --o, did you mean one of "--on", "--off"?`, " things add"},
		{"things add x --port", "--port: the value is missing", " things add"},
		{"things add x --port --on", "--port: the value is missing, or is it the next word? Then write --port=--on", " things add"},
		{"things add x --port 65536", `--port: expected a whole number from 0 to 65535 but got "65536"`, " things add"},
		{"things add x --at 1.5", `--at: expected a whole number but got "1.5"`, " things add"},
		{"things add x --wait 5", `--wait: expected a duration such as 300ms, 30s or 1h30m but got "5"`, " things add"},
		{"things add x --letter ab", `--letter: "ab" is not one letter`, " things add"},
		{"things add x --weight a", `--weight: expected "<key>=<value>" but got "a"`, " things add"},
		{"things add x --weight a=b", `--weight: expected a number but got "b"`, " things add"},
		{"things add x --on=maybe", `--on: expected true, 1, yes, false, 0 or no but got "maybe"`, " things add"},
		{"things add x --kind c", `--kind: must be one of "a", "b" but got "c"`, " things add"},
		{"things add x --off --on", "--on and --off can't be used together", " things add"},
		{"things add x --file /", `--file: "/" exists but is a directory`, " things add"},
		{"need", "missing flags: --dir=DIR", " need"},
	} {
		var out, errs bytes.Buffer
		p := program
		p.Out, p.Err = &out, &errs
		code := Run(p, &things{}, strings.Fields(tc.args), 0)
		if want := fmt.Sprintf("test: %s\nSee test%s --help.\n", tc.want, tc.help); code != ExitUsage || out.Len() > 0 || errs.String() != want {
			t.Errorf("%s: exit %d\n%s%s\nwant %s", tc.args, code, &out, &errs, want)
		}
	}
	t.Setenv("COMMANDLINE_TEST_PLACE", "")
	var c struct {
		Port int `name:"port" env:"COMMANDLINE_TEST_PLACE" help:"A port."`
	}
	if _, err := program.Parse(&c, nil); err == nil || err.Error() != `--port: expected a whole number but got "" (from $COMMANDLINE_TEST_PLACE)` {
		t.Error(err)
	}
}

// The help of the programs is in golden files.
func TestHelpAndVersion(t *testing.T) {
	for args, want := range map[string]string{
		"--version":            "test 1\n",
		"things add --version": "test 1\n",
		"--help":               "Usage: test <command> [flags]\n",
		"--help things add":    "Usage: test things add <name> ... [flags]\n",
		"things -l -h":         "Usage: test things <command> [flags]\n",
		"things show -h":       "Usage: test things show [flags]\n",
		"need --help":          "Usage: test need --dir=DIR [flags]\n",
	} {
		var out, errs bytes.Buffer
		p := program
		p.Out, p.Err = &out, &errs
		if code := Run(p, &things{}, strings.Fields(args), 0); code != 0 || errs.Len() > 0 || !strings.HasPrefix(out.String(), want) {
			t.Errorf("%s: exit %d, %s%s", args, code, &out, &errs)
		}
	}
}
