package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"strings"
)

// decision are the packages that make one.
var decision = []string{"proxy/policy", "proxy/books", "proxy/demand"}

// fixed are their constants that are not tried, with the reason.
var fixed = map[string]string{
	"workTold":    "bounds what nodes exchange",
	"claimTokens": "bounds what a peer may claim", "claimRequests": "bounds what a peer may claim",
	"poolAll": "names a pool", "poolGeneral": "names a pool", "MaxConsidered": "size of an array",
	"maxWeight": "bounds a setting", "hashBound": "the usual value", "defaultHashBytes": "default of a setting", "defaultBlockBytes": "default of a setting",
	"DefaultSlowStart": "default of a setting",
}

// constantsOf returns two variants of each constant of the packages whose declaration has a number in it,
// doubled and halved, and the lines of the packages without tests. All other constants are enumerations
// (iota), texts or truths, or follow from other constants.
func constantsOf(root string, packages ...string) (list []variant, lines int, err error) {
	tree := os.DirFS(root)
	var files []string
	for _, dir := range packages {
		some, _ := fs.Glob(tree, path.Join(dir, "*.go")) // only a bad pattern is an error
		files = append(files, some...)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		raw, err := fs.ReadFile(tree, file)
		if err != nil {
			return nil, 0, err
		}
		f, err := parser.ParseFile(token.NewFileSet(), "", raw, parser.SkipObjectResolution)
		if err != nil {
			return nil, 0, err
		}
		source, inConst := string(raw), false
		lines += strings.Count(source, "\n")
		ast.Inspect(f, func(n ast.Node) bool {
			if d, ok := n.(*ast.GenDecl); ok {
				inConst = d.Tok == token.CONST
			}
			if s, ok := n.(*ast.ValueSpec); ok && inConst {
				list = append(list, numbers(file, source[s.Pos()-f.FileStart:s.End()-f.FileStart], s)...)
			}
			return true
		})
	}
	return list, lines, nil
}

// numbers returns the variants of a declaration, whose source is text. Halved whole numbers are rounded down.
func numbers(file, text string, s *ast.ValueSpec) (list []variant) {
	for i, v := range s.Values {
		before, value, after := text[:v.Pos()-s.Pos()], text[v.Pos()-s.Pos():v.End()-s.Pos()], text[v.End()-s.Pos():]
		number := false
		ast.Inspect(v, func(n ast.Node) bool {
			l, ok := n.(*ast.BasicLit)
			number = number || ok && (l.Kind == token.INT || l.Kind == token.FLOAT)
			return true
		})
		if name := s.Names[i].Name; number && !strings.Contains(value, "iota") {
			list = append(list, variant{name + " doubled", value, []edit{{file, text, before + "2*(" + value + ")" + after}}},
				variant{name + " halved", value, []edit{{file, text, before + "(" + value + ")/2" + after}}})
		}
	}
	return list
}
