// Command figures prints the size of the project, lines and words by part and the size of the
// shipped program, and for each package the number of backward references between its files.
//
//	go run ./chaos/figures [-binary bin/grapevine] [-dir .]
//
// It needs only go. -dir selects the module, so that one version measures other commits.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

func main() {
	dir := flag.String("dir", ".", "root of the module")
	binary := flag.String("binary", "", "the shipped program, to print its size; below -dir")
	flag.Parse()
	if err := run(os.Stdout, *dir, *binary); err != nil {
		fmt.Fprintln(os.Stderr, "figures:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, dir, binary string) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	parts, err := measure(dir)
	if err != nil {
		return err
	}
	fmt.Fprintln(w, "part\tfiles\tlines\twords of comments or text")
	for i, p := range parts {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\n", part(i), p.files, p.lines, p.words)
	}
	if binary != "" {
		info, err := os.Stat(filepath.Join(dir, binary))
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "\nshipped program\t%d bytes\n", info.Size())
	}
	packages, err := load(dir)
	if err != nil {
		return err
	}
	fmt.Fprintln(w, "\npackage\tfiles\treferences between files\tbackwards")
	var all, back int
	for _, p := range packages {
		edges := p.references()
		n := backwards(len(p.files), edges)
		all, back = all+len(edges), back+n
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\n", p.name, len(p.files), len(edges), n)
	}
	fmt.Fprintf(w, "all\t\t%d\t%d\n", all, back)
	fmt.Fprintln(w, "\nA reference is a pair of files of one package, the first of which uses a function, type, method, variable or constant that the")
	fmt.Fprintln(w, "second declares at package level; tests are left out. Files are ordered by moving one at a time, from the alphabetical order, while")
	fmt.Fprintln(w, "that helps; backwards are the references that point to a file that comes earlier all the same: no fewer than the least there can be.")
	return w.Flush()
}

type part int

const (
	product part = iota
	harness
	tests
	documents
	parts
)

func (p part) String() string {
	return [...]string{"product (Go without tests, chaos and cmd/grapevine-lab)", "harness (chaos, cmd/grapevine-lab)", "tests (_test.go)", "documents (.md)"}[p]
}

type size struct{ files, lines, words int }

// measure counts every Go file and document below dir: all lines, and the words of comments and of
// whole documents.
func measure(dir string) (out [parts]size, err error) {
	root := os.DirFS(dir)
	err = fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if outside := path != "." && path[0] == '.' || path == "bin" || path == "out"; d.IsDir() && outside {
			return fs.SkipDir
		}
		of, ok := partOf(path)
		if !ok {
			return nil
		}
		text, err := fs.ReadFile(root, path)
		if err != nil {
			return err
		}
		words, err := wordsIn(path, text, of)
		out[of].files++
		out[of].lines += bytes.Count(text, []byte("\n"))
		out[of].words += words
		return err
	})
	return out, err
}

// partOf returns a file's part by its path below the root; false if it is neither Go nor a
// document.
func partOf(path string) (part, bool) {
	switch {
	case strings.HasSuffix(path, ".md"):
		return documents, true
	case strings.HasSuffix(path, "_test.go"):
		return tests, true
	case !strings.HasSuffix(path, ".go"):
		return 0, false
	case strings.HasPrefix(path, "chaos/"), strings.HasPrefix(path, "cmd/grapevine-lab/"):
		return harness, true
	}
	return product, true
}

func wordsIn(name string, text []byte, of part) (int, error) {
	if of == documents {
		return words(string(text)), nil
	}
	f, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, group := range f.Comments {
		n += words(group.Text())
	}
	return n, nil
}

func words(text string) (n int) {
	for _, field := range strings.Fields(text) {
		if strings.IndexFunc(field, func(r rune) bool {
			return r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || r > 127
		}) >= 0 {
			n++
		}
	}
	return n
}

type edge struct{ from, to int }

// backwards counts the edges to an earlier file in an order that no move of a single file improves.
// It is an upper bound on the least number over all orders, which is hard to find.
func backwards(files int, edges []edge) int {
	var order []int
	for i := range files {
		order = append(order, i)
	}
	best := countBack(order, edges)
	for improved := true; improved; {
		improved = false
		for i := range order {
			for j := range order {
				next := slices.Delete(slices.Clone(order), i, i+1)
				next = slices.Insert(next, j, order[i])
				if n := countBack(next, edges); n < best {
					order, best, improved = next, n, true
				}
			}
		}
	}
	return best
}

func countBack(order []int, edges []edge) (n int) {
	at := make([]int, len(order))
	for i, f := range order {
		at[f] = i
	}
	for _, e := range edges {
		if at[e.to] < at[e.from] {
			n++
		}
	}
	return n
}
