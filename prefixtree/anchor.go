package prefixtree

const (
	denseDepth   = 16 // prompts up to about 2k tokens match exactly from remote facts
	anchorStride = 4  // blocks, about 512 tokens
	maxSpan      = anchorStride
)

// A prompt's anchors are numbered 0..anchorCount-1 by depth.

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

func anchorIndex(depth, total int) int {
	if depth <= denseDepth {
		return depth - 1
	}
	if depth == total {
		return anchorCount(total) - 1
	}
	return denseDepth - 1 + (depth-denseDepth)/anchorStride
}
