package scenario

import (
	"bytes"
	"fmt"
	"html/template"

	"grapevine/chaos/report"
)

var page = template.Must(template.New("chaos").Funcs(template.FuncMap{"picture": picture, "cell": cell}).Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>grapevine-lab chaos</title>
<style>
body { font: 15px/1.45 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; color: #1b1b1b; background: #fff }
table { border-collapse: collapse; font-size: 13px; margin: 1rem 0; width: 100% }
th, td { padding: .25rem .5rem; text-align: left; vertical-align: top; border-bottom: 1px solid #ddd }
th { border-bottom: 2px solid #888 }
pre { background: #f5f5f5; padding: .6rem; overflow: auto; max-height: 20rem; font-size: 12px }
svg { width: 100%; min-width: 46rem; height: auto } .wide { overflow-x: auto }
.held, .passed { color: #00704d } .violated, .failed { color: #b02a00; font-weight: 600 } .idle { color: #777 }
.note { color: #555; font-size: 13px }
td { overflow-wrap: anywhere } td.word { overflow-wrap: normal }
@media (max-width: 40rem) {
 body { margin: 1rem auto } th { display: none } tr { display: block; border-bottom: 1px solid #ddd; padding: .3rem 0 }
 td { display: inline-block; border: 0; padding: .1rem .6rem .1rem 0 } td:last-child { display: block }
}
</style>
<h1>grapevine-lab chaos</h1>
<table><tr><th>scenario</th><th>result</th><th>seed</th><th>requests</th><th>violations</th><th>what it is to show</th></tr>
{{range .}}<tr><td class="word"><a href="#{{.Scenario}}-{{.Seed}}">{{.Scenario}}</a></td><td class="word {{cell .Result}}">{{.Result}}</td><td>{{.Seed}}</td><td>{{.Requests}}</td><td>{{.Violations}}</td><td>{{.Proves}}</td></tr>
{{end}}</table>
{{range .}}<h2 id="{{.Scenario}}-{{.Seed}}">{{.Scenario}}: <span class="{{cell .Result}}">{{.Result}}</span></h2>
<p>{{.Proves}}. {{.Nodes}} routers, {{.Engines}} engines, {{.DurationS}} s of traffic, {{.Requests}} requests in {{.Attempts}} attempts: {{range $o, $n := .Outcomes}}{{$n}} {{$o}} {{end}}{{with .Harness.PeakMiB}}(the harness took {{printf "%.0f" .}} MiB at most){{end}}</p>
{{range .Missing}}<p class="idle">{{.}}</p>
{{end}}<pre>{{.Command}}
{{range .Schedule}}{{.}}
{{end}}</pre>
<div class="wide">{{picture .}}</div>
<table><tr><th>promise</th><th>state</th><th>checked</th><th></th></tr>
{{range .Verdicts}}<tr><td class="word">{{.Name}}</td><td class="word {{cell .State}}">{{.State}}</td><td>{{.Checked}}</td><td>{{.Promise}} <span class="note">(within: {{.Bound}}; seen by: {{.Seen}})</span>{{with .Note}}<br>{{.}}{{end}}
{{range .Violations}}<br><span class="violated">{{.At}}, {{.Place}}: {{.Evidence}}</span>{{end}}</td></tr>
{{end}}</table>
{{end}}</html>
`))

func cell(word any) string {
	switch word {
	case Held, Passed:
		return "held"
	case Violated, Failed:
		return "violated"
	}
	return "idle"
}

// WriteHTML writes verdicts and timelines of runs as one self-contained page. The file is written
// atomically.
func WriteHTML(path string, runs ...*Report) error {
	var b bytes.Buffer
	if err := page.Execute(&b, runs); err != nil {
		return err
	}
	if err := report.WriteFile(path, b.Bytes()); err != nil {
		return fmt.Errorf("page: %w", err)
	}
	return nil
}
