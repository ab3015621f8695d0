package prefixtree

import "testing"

func TestSharedDepth(t *testing.T) {
	for blocks, want := range map[int]int{1: 1, 16: 16, 17: 16, 19: 16, 20: 20, 23: 20, 1024: 1024} {
		if got := SharedDepth(blocks); got != want {
			t.Errorf("of %d blocks, %d, want %d", blocks, got, want)
		}
	}
}
