package main

import (
	"time"

	"grapevine/chaos/workload"
)

type workloadFlags struct {
	Trace    string        `name:"trace" type:"existingfile" placeholder:"FILE" xor:"workload" group:"workload" help:"Trace in JSON Lines, plain or .gz."`
	Workload string        `name:"workload" placeholder:"NAME" xor:"workload" group:"workload" help:"Generated sessions instead of a trace: medium, agentic, hot or chat (the default)."`
	Speed    float64       `name:"speed" default:"1" placeholder:"X" group:"workload" help:"How many times faster than recorded; for generated sessions, how many times more of them."`
	Duration time.Duration `name:"duration" placeholder:"DURATION" group:"workload" help:"Leave out requests that arrive later. Default for generated sessions: 3m."`
	Requests int           `name:"requests" placeholder:"N" group:"workload" help:"End after this many requests."`
	Seed     uint64        `name:"seed" default:"1" placeholder:"N" group:"workload" help:"Seed of all random choices. Equal seeds give equal runs."`
}

func (f *workloadFlags) open(engines int) (workload.Workload, workload.Options, error) {
	opt := workload.Options{Speed: f.Speed, Duration: f.Duration, Requests: f.Requests, Seed: f.Seed, Backends: engines}
	if f.Trace != "" {
		w, err := workload.Open(f.Trace)
		return w, opt, err
	}
	name := f.Workload
	if name == "" {
		name = "chat"
	}
	w, err := workload.Preset(name)
	if err != nil {
		return nil, opt, usageError{err}
	}
	return w, opt, nil
}
