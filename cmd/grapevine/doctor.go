package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"

	"grapevine.example/node/admin"
	"grapevine.example/node/doctor"
)

type doctorCmd struct {
	adminFlags
	File string  `arg:"" optional:"" placeholder:"FILE" help:"Requests in JSON Lines, plain or .gz, instead of those of a running router: bodies, {\"url\":PATH,\"body\":BODY}, or a trace. - is stdin."`
	Rate float64 `name:"prefill-rate" default:"10000" placeholder:"N" help:"With a file: prefill tokens/s of an engine."`
}

func (c *doctorCmd) Run(s *streams) error {
	if c.File == "" {
		return show(&c.adminFlags, s, (*admin.Client).Doctor, printDoctor)
	}
	if !(c.Rate > 0) {
		return usagef("--prefill-rate %v: write a number above 0", c.Rate)
	}
	in := s.in
	if c.File != "-" {
		f, err := os.Open(c.File)
		if err != nil {
			return usageError{err}
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	r, err := doctor.File(in, c.Rate)
	switch {
	case errors.Is(err, doctor.ErrFile):
		return usageError{fmt.Errorf("%s: %w", c.File, err)}
	case err != nil:
		return err
	case c.JSON:
		return printJSON(s.out, r)
	}
	return printDoctor(s.out, r)
}

func printDoctor(out io.Writer, r *doctor.Report) error {
	if len(r.Applications) == 0 {
		text := "No request was sampled in the last half hour."
		if !r.Sampling {
			text = "This router samples no requests: set doctor_samples."
		}
		_, err := fmt.Fprintln(out, text)
		return err
	}
	for i, a := range r.Applications {
		if i > 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprintf(out, "%s: %s\n  %s\n", applicationName(&a.Application), a.Verdict, a.Why)
		per, span := "", ""
		if r.Per == "hour" {
			per, span = " an hour", " over "+seconds(a.SeenS)
		}
		fmt.Fprintf(out, "  %s requests%s, %s prompt tokens, %s of them cached; %d samples%s\n",
			figure(a.Requests), per, figure(a.PromptTokens), figure(a.CachedTokens), a.Samples, span)
		for _, f := range a.Findings {
			fmt.Fprintf(out, "  %s, byte %d: %s in %.0f %% of the requests\n", f.Field, f.Offset, differs(&f), 100*f.Share)
			fmt.Fprintf(out, "    saves %s tokens and %s of prefill%s: %s\n", figure(f.SavedTokens), seconds(f.SavedPrefillS), per, f.Remedy)
		}
	}
	return nil
}

func applicationName(a *doctor.Application) string {
	if *a == (doctor.Application{}) {
		return "all requests" // of a trace, which names no models
	}
	name := "model " + cmp.Or(plain(a.Model), "not named")
	if a.Client != "" {
		name = "client " + plain(a.Client) + ", " + name
	}
	if a.Rule != "" {
		name += ", rule " + plain(a.Rule)
	}
	return name
}

func differs(f *doctor.Finding) string {
	if f.Kind == doctor.Order {
		return fmt.Sprintf("the order differs of %s bytes", figure(float64(f.DifferBytes)))
	}
	return fmt.Sprintf("up to %d bytes differ, and %s behind them are the same again,", f.DifferBytes, figure(float64(f.AgainBytes)))
}

// figure writes three digits and a unit.
func figure(n float64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.3g G", n/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.3g M", n/1e6)
	case n >= 1e4:
		return fmt.Sprintf("%.3g k", n/1e3)
	}
	return fmt.Sprintf("%.0f", n)
}
