package report

import (
	"bytes"
	"errors"
	"fmt"
	"html/template"
	"io"
	"os"
	"path/filepath"
	"strings"
)

var page = template.Must(template.New("report").Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{{.Title}}</title>
<style>
body { font: 15px/1.45 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #1b1b1b; background: #fff }
table { border-collapse: collapse; font-size: 13px; margin: 1rem 0; display: block; overflow-x: auto }
th, td { padding: .25rem .45rem; text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
th { border-bottom: 2px solid #888 } td { border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left }
svg { width: 100%; height: auto }
.note { color: #555 }
</style>
<h1>{{.Title}}</h1>
<table><tr>{{range .Head}}<th>{{.}}</th>{{end}}</tr>
{{range .Rows}}<tr>{{range .}}<td>{{.}}</td>{{end}}</tr>
{{end}}</table>
{{.Picture}}
<p class="note">Hit: prompt tokens the engines served from their cache. Follow-up: second and later turns of a
conversation. Load spread: standard deviation of requests per engine over their mean. Busy: share of time in which an
engine had prompt tokens to compute. Prediction error: difference between the cached tokens the router expected and
those the engine reported, over prompt tokens.{{.Notes}}</p>
</html>
`))

// WriteHTML writes one self-contained page with the table and the pictures.
func WriteHTML(w io.Writer, runs ...Report) error {
	var svg bytes.Buffer
	if err := WriteSVG(&svg, runs...); err != nil {
		return err
	}
	data := struct {
		Title   string
		Head    []string
		Rows    [][]string
		Picture template.HTML
		Notes   string
	}{Title: "grapevine: " + title(runs)}
	cols := visible(runs)
	for _, c := range cols {
		data.Head = append(data.Head, c.head)
	}
	for i := range runs {
		var row []string
		for _, c := range cols {
			row = append(row, c.cell(&runs[i]))
		}
		data.Rows = append(data.Rows, row)
	}
	data.Picture = template.HTML(svg.String()) //nolint:gosec // drawn above; texts are escaped
	r := &runs[0]
	data.Notes = fmt.Sprintf(" Seed %d.", r.Seed)
	if r.WarmupS > 0 {
		data.Notes += fmt.Sprintf(" The first %.3g s are left out of the table.", r.WarmupS)
	}
	return page.Execute(w, data)
}

// WritePlot writes the runs to a file atomically, as .svg or .html by the path's ending.
func WritePlot(path string, runs ...Report) error {
	var write func(io.Writer, ...Report) error
	switch ext := strings.ToLower(filepath.Ext(path)); ext {
	case ".svg":
		write = WriteSVG
	case ".html", ".htm":
		write = WriteHTML
	default:
		return fmt.Errorf("%w: cannot tell the format of %q: end it in .svg or .html", ErrPlot, path)
	}
	var b bytes.Buffer
	if err := write(&b, runs...); err != nil {
		return err
	}
	if err := WriteFile(path, b.Bytes()); err != nil {
		return fmt.Errorf("%w: %w", ErrPlot, err)
	}
	return nil
}

// WriteFile replaces a world-readable file atomically, also for concurrent readers.
func WriteFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".report-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
