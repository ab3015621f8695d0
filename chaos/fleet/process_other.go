//go:build !linux

package fleet

import "errors"

func onMainThread() bool { return false }

func usageOf(int) (Usage, error) { return Usage{}, errors.ErrUnsupported }
