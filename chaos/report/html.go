package report

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"os"
	"path/filepath"
	"strings"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("report").Parse(pageText))

// WriteHTML writes a self-contained page with the table and the pictures.
func WriteHTML(w io.Writer, runs ...Report) error {
	var svg bytes.Buffer
	if err := WriteSVG(&svg, runs...); err != nil {
		return err
	}
	rows := cells(runs)
	data := struct {
		Title   string
		Head    []string
		Rows    [][]string
		Picture template.HTML
		Notes   string
	}{Title: "grapevine: " + title(runs), Head: rows[0], Rows: rows[1:]}
	data.Picture = template.HTML(svg.String()) //nolint:gosec // drawn above; texts are escaped
	r := &runs[0]
	data.Notes = fmt.Sprintf(" Seed %d.", r.Seed)
	if r.WarmupS > 0 {
		data.Notes += fmt.Sprintf(" The first %.3g s are left out of the table.", r.WarmupS)
	}
	return page.Execute(w, data)
}

// WritePlot writes .svg or .html by the path's ending, atomically, and makes the directory.
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

// WriteFile replaces a world-readable file atomically and makes its directory.
func WriteFile(path string, data []byte) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".report-*")
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
