package prefixtree

const (
	denseDepth   = 16 // prompts up to about 2k tokens match exactly from remote facts
	AnchorStride = 4  // blocks from one anchor to the next beyond these, about 512 tokens
	maxSpan      = AnchorStride
)

// SharedDepth returns the depth of the last anchor of a prefix of so many blocks, which longer prompts have, too.
func SharedDepth(blocks int) int {
	if blocks <= denseDepth {
		return blocks
	}
	return blocks - blocks%AnchorStride
}

// A prompt's anchors are numbered 0..anchorCount-1 by depth.

func anchorCount(total int) int {
	if total <= denseDepth {
		return total
	}
	return denseDepth + (total-denseDepth+AnchorStride-1)/AnchorStride
}

func anchorDepth(i, total int) int {
	if i < denseDepth {
		return i + 1
	}
	return min(denseDepth+AnchorStride*(i-denseDepth+1), total)
}

func anchorIndex(depth, total int) int {
	if depth <= denseDepth {
		return depth - 1
	}
	if depth == total {
		return anchorCount(total) - 1
	}
	return denseDepth - 1 + (depth-denseDepth)/AnchorStride
}
