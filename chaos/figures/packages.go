package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

type pkg struct {
	name  string
	files []*ast.File
	types *types.Package
	uses  map[*ast.Ident]types.Object
}

type listed struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
	DepOnly                 bool
}

// load type-checks the packages of the module at dir for this machine, with imports from the
// compiler's export data.
func load(dir string) (out []*pkg, err error) {
	cmd := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,DepOnly", "./...")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	exports := make(map[string]string)
	var own []listed
	for dec := json.NewDecoder(strings.NewReader(string(text))); ; {
		var l listed
		if err := dec.Decode(&l); err == io.EOF {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		exports[l.ImportPath] = l.Export
		if !l.DepOnly && len(l.GoFiles) > 0 {
			own = append(own, l)
		}
	}
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for _, l := range own {
		_, name, _ := strings.Cut(l.ImportPath, "/")
		p := &pkg{name: name, uses: make(map[*ast.Ident]types.Object)}
		for _, file := range l.GoFiles {
			f, err := parser.ParseFile(fset, filepath.Join(l.Dir, file), nil, parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			p.files = append(p.files, f)
		}
		conf := types.Config{Importer: imports}
		if p.types, err = conf.Check(l.ImportPath, fset, p.files, &types.Info{Uses: p.uses}); err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

func (p *pkg) references() (out []edge) {
	seen := make(map[edge]bool)
	for id, obj := range p.uses {
		if obj.Pkg() != p.types || !atPackageLevel(obj) {
			continue
		}
		e := edge{p.fileAt(id.Pos()), p.fileAt(obj.Pos())}
		if e.from != e.to && !seen[e] {
			seen[e] = true
			out = append(out, e)
		}
	}
	return out
}

func atPackageLevel(obj types.Object) bool {
	if f, ok := obj.(*types.Func); ok && f.Signature().Recv() != nil {
		return true
	}
	return obj.Parent() == obj.Pkg().Scope()
}

func (p *pkg) fileAt(pos token.Pos) int {
	for i, f := range p.files {
		if f.FileStart <= pos && pos <= f.FileEnd {
			return i
		}
	}
	panic("figures: a position outside its package")
}
