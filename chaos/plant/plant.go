// Package plant holds planted defects, at least one per promise of the fleet, so that tests can
// show that the chaos harness finds them.
//
// The build of bin/grapevine-chaos (make build-chaos, chaos/instrument) replaces source text by all
// of them; GRAPEVINE_PLANT activates one. The build and a test fail if a replaced text does not
// occur exactly once.
package plant

import (
	"fmt"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"grapevine.example/chaos/overlay"
)

// Env activates one defect.
const Env = "GRAPEVINE_PLANT"

type Defect struct {
	Name   string
	Breaks string // the promise, by its name in chaos/scenario
	Wrong  string // what is wrong, in a sentence
	Edits  []Edit
}

// Edit is a change in one place. New calls planted(Name) and behaves as Old where that is false.
type Edit struct {
	File string // below the module's root, with slashes
	Old  string // occurs there once
	New  string
}

// hook defines planted for an edited package.
const hook = `package %s

import "os"

var plantedDefect = os.Getenv(%q)

// planted says whether a defect is active in this process.
func planted(name string) bool { return plantedDefect == name }
`

const hookFile = "chaos_planted.go"

// All lists the defects in the order of the promises.
func All() []Defect { return slices.Clone(defects) }

// Overlay returns the changed and added files of the module at root.
func Overlay(root string) (overlay.Files, error) {
	out := make(overlay.Files)
	for _, d := range defects {
		for _, e := range d.Edits {
			if err := lay(root, out, d.Name, e); err != nil {
				return nil, fmt.Errorf("planted defect %s: %w", d.Name, err)
			}
		}
	}
	for _, file := range slices.Sorted(maps.Keys(out)) {
		f, err := parser.ParseFile(token.NewFileSet(), file, out[file], parser.PackageClauseOnly)
		if err != nil {
			return nil, err
		}
		out[filepath.Join(filepath.Dir(file), hookFile)] = fmt.Sprintf(hook, f.Name, Env)
	}
	return out, nil
}

func lay(root string, out overlay.Files, defect string, e Edit) error {
	if !strings.Contains(e.New, fmt.Sprintf("planted(%q)", defect)) && !strings.HasSuffix(e.New, e.Old) {
		return fmt.Errorf("%s: what takes the place of this does not ask planted(%q), nor is it put before it\n%s", filepath.FromSlash(e.File), defect, e.Old)
	}
	if err := out.Edit(filepath.Join(root, filepath.FromSlash(e.File)), e.Old, e.New); err != nil {
		return fmt.Errorf("chaos/plant: %w", err)
	}
	return nil
}
