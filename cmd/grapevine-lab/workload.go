package main

import (
	"cmp"

	"grapevine.example/chaos/workload"
)

type workloadFlags struct {
	Trace    string           `name:"trace" type:"existingfile" placeholder:"FILE" xor:"workload" group:"workload" help:"Trace in JSON Lines, plain or .gz."`
	Workload string           `name:"workload" placeholder:"NAME" xor:"workload" group:"workload" help:"Generated sessions instead of a trace: medium, agentic, hot or chat (the default)."`
	Options  workload.Options `embed:""`
}

func (f *workloadFlags) open(engines int) (workload.Workload, workload.Options, error) {
	opt := f.Options
	opt.Backends = engines
	if f.Trace != "" {
		w, err := workload.Open(f.Trace)
		return w, opt, err
	}
	w, err := workload.Preset(cmp.Or(f.Workload, "chat"))
	if err != nil {
		return nil, opt, usageError{err}
	}
	return w, opt, nil
}
