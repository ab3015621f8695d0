package raftstore

import (
	"errors"
	"fmt"
)

// refusalCode says which sentinel a refusal is. The values are in the log's
// memory of outcomes and on the wire.
type refusalCode uint8

const (
	refusedInvalid refusalCode = iota + 1
	refusedExists
	refusedNotFound
	refusedConflict
	refusedTooMany
)

// maxRefusalBytes bounds the text of a refusal, which is remembered.
const maxRefusalBytes = 512

// sentinel is the exported error of a code.
func (c refusalCode) sentinel() error {
	switch c {
	case refusedInvalid:
		return ErrInvalid
	case refusedExists:
		return ErrExists
	case refusedNotFound:
		return ErrNotFound
	case refusedConflict:
		return ErrConflict
	case refusedTooMany:
		return ErrTooMany
	}
	return nil
}

// refusal is why the state machine did not carry a command out. It travels to
// the node that asked, so it is a code and a text instead of a chain of errors.
type refusal struct {
	code refusalCode
	text string
}

func (r *refusal) Error() string { return r.text }

// Is lets errors.Is find the sentinel of the code.
func (r *refusal) Is(target error) bool { return target == r.code.sentinel() }

func refuse(code refusalCode, format string, args ...any) *refusal {
	text := fmt.Sprintf(format, args...)
	if len(text) > maxRefusalBytes {
		text = text[:maxRefusalBytes]
	}
	return &refusal{code, text}
}

// asRefusal finds a refusal in an error.
func asRefusal(err error) (*refusal, bool) {
	r, ok := errors.AsType[*refusal](err)
	return r, ok
}
