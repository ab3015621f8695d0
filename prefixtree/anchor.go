package prefixtree

const (
	// denseDepth: up to here every block is an anchor, so that prompts of a few hundred to two thousand tokens match
	// exactly from remote facts too.
	denseDepth = 16
	// anchorStride: below denseDepth every 4th block (about 512 tokens) is an anchor.
	anchorStride = 4
	// maxSpan is the most blocks an anchor stands for.
	maxSpan = anchorStride
)

// IsAnchor says whether the block at depth (1 is the first block) of a prompt of total full blocks is shared between
// nodes: every block to 16, then every 4th, plus the last full block, because a next turn shares all of the previous
// prompt. Depths outside 1..total are no anchors.
func IsAnchor(depth, total int) bool {
	if depth < 1 || depth > total {
		return false
	}
	return depth <= denseDepth || depth%anchorStride == 0 || depth == total
}

// anchorSpan returns how many blocks an anchor at depth stands for: itself and those between it and the stride's anchor
// above. It depends on the depth alone, so that every node counts alike whichever chains it has seen. The last block of
// an earlier prompt may lie in between; it is then counted twice, which makes usage some hundredths too large.
func anchorSpan(depth int) uint8 {
	if depth <= denseDepth {
		return 1
	}
	return uint8((depth-1)%anchorStride) + 1
}

// Anchors of a prompt are numbered 0..anchorCount-1 by depth, without materialising them.

func anchorCount(total int) int {
	if total <= denseDepth {
		return total
	}
	return denseDepth + (total-denseDepth+anchorStride-1)/anchorStride
}

func anchorDepth(i, total int) int {
	if i < denseDepth {
		return i + 1
	}
	return min(denseDepth+anchorStride*(i-denseDepth+1), total)
}

// anchorIndex returns the number of the deepest anchor at or above depth.
func anchorIndex(depth, total int) int {
	if depth <= denseDepth {
		return depth - 1
	}
	if depth == total {
		return anchorCount(total) - 1
	}
	return denseDepth - 1 + (depth-denseDepth)/anchorStride
}
