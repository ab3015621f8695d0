package raftstore

import (
	"errors"
	"fmt"
)

// refusalCode is a sentinel error in stored outcomes and on the wire.
type refusalCode uint8

const (
	refusedInvalid refusalCode = iota + 1
	refusedExists
	refusedNotFound
	refusedConflict
	refusedTooMany
)

const maxRefusalBytes = 512

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

// refusal is a code and a text, so that it can travel to the asking node.
type refusal struct {
	Code refusalCode
	Text string
}

func (r *refusal) Error() string { return r.Text }

func (r *refusal) Is(target error) bool { return target == r.Code.sentinel() }

func refuse(code refusalCode, format string, args ...any) *refusal {
	text := fmt.Sprintf(format, args...)
	if len(text) > maxRefusalBytes {
		text = text[:maxRefusalBytes]
	}
	return &refusal{code, text}
}

func asRefusal(err error) (*refusal, bool) {
	r, ok := errors.AsType[*refusal](err)
	return r, ok
}
