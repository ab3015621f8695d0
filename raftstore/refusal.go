package raftstore

import "fmt"

// refusalCode stands for an error in stored outcomes.
type refusalCode uint8

const (
	refusedInvalid refusalCode = iota + 1
	refusedExists
	refusedNotFound
	refusedConflict
	refusedTooMany
)

const maxRefusalBytes = 512

var refusals = map[refusalCode]error{
	refusedInvalid: ErrInvalid, refusedExists: ErrExists, refusedNotFound: ErrNotFound,
	refusedConflict: ErrConflict, refusedTooMany: ErrTooMany,
}

type refusal struct {
	Code refusalCode
	Text string
}

func (r *refusal) Error() string { return r.Text }

func (r *refusal) Is(target error) bool { return target == refusals[r.Code] }

func refuse(code refusalCode, format string, args ...any) *refusal {
	text := fmt.Sprintf(format, args...)
	if len(text) > maxRefusalBytes {
		text = text[:maxRefusalBytes]
	}
	return &refusal{code, text}
}
