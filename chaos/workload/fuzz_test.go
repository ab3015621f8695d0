package workload

import (
	"errors"
	"strings"
	"testing"
)

func FuzzRead(f *testing.F) {
	f.Add(idsTrace)
	f.Add(`{"timestamp":1.5,"input_length":1000,"output_length":1,"session":"a","turn":1,"hash_runs":[0,3,9,12]}`)
	f.Add(`{"timestamp":0,"input_length":9,"output_length":1,"block_tokens":1,"hash_runs":[18446744073709551610,5,0,4]}`)
	f.Add("{\"timestamp\":0,\"input_length\":1,\"output_length\":0}\n{}")
	f.Add("\x1f\x8b\x08")
	f.Fuzz(func(t *testing.T, text string) {
		tr, err := Read(strings.NewReader(text), "f")
		if err != nil {
			if !errors.Is(err, ErrTrace) || !strings.Contains(err.Error(), "f:") {
				t.Fatalf("an error without its place: %v", err)
			}
			return
		}
		src, err := tr.Source(Options{Requests: 50})
		if err != nil {
			t.Fatal(err)
		}
		for r := src.Next(); r != nil; r = src.Next() {
			if r.At < 0 || r.PromptTokens < 1 || r.OutputTokens < 1 || len(r.Keys)*r.KeyTokens > r.PromptTokens {
				t.Fatalf("%+v", r)
			}
		}
	})
}
