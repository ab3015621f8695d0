package workload

import (
	"cmp"
	"slices"
)

// candidates are the block sizes tried, the likeliest first: Mooncake's, that of coding agents'
// traces, then the engines' own.
var candidates = []int{defaultBlock, 64, 16, 128, 256, 32, 1024}

func (t *Trace) settleBlocks() error {
	given := t.blockTokens != 0
	if !given {
		if err := t.inferBlock(); err != nil {
			return err
		}
	}
	for i := range t.lines {
		l := &t.lines[i]
		least, most := l.input/t.blockTokens-1, ceilDiv(l.input, t.blockTokens)
		if l.blocks > most {
			return t.errorf(l.no, "%d blocks of %d tokens in a prompt of %d: give block_tokens in every line if the size is another", l.blocks, t.blockTokens, l.input)
		}
		// Fewer blocks mean an unnamed tail, which an author of block_tokens may intend; without
		// the field they mean a wrong size.
		if !given && l.blocks > 0 && l.blocks < least {
			return t.errorf(l.no, "only %d blocks in a prompt of %d tokens, where others show %d tokens a block: give block_tokens in every line", l.blocks, l.input, t.blockTokens)
		}
	}
	return nil
}

func (t *Trace) inferBlock() error {
	best, votes, named := defaultBlock, -1, 0
	for _, b := range candidates {
		n := 0
		for i := range t.lines {
			l := &t.lines[i]
			if l.blocks > 0 && (l.blocks == l.input/b || l.blocks == ceilDiv(l.input, b)) {
				n++
			}
		}
		if n > votes {
			best, votes = b, n
		}
	}
	for i := range t.lines {
		if t.lines[i].blocks > 0 {
			named++
		}
	}
	// Half of the lines must fit. Sources that cut blocks before adding the template are one short
	// in many lines, never more.
	if named > 0 && votes*2 < named {
		return t.errorf(t.lines[0].no, "cannot tell how many tokens a block has (%d fits best, in %d of %d lines): add \"block_tokens\" to the lines", best, votes, named)
	}
	t.blockTokens = best
	return nil
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

func (t *Trace) order() {
	slices.SortStableFunc(t.lines, func(a, b line) int { return cmp.Compare(a.at, b.at) })
	distinct := 1
	for i := 1; i < len(t.lines); i++ {
		if t.lines[i].at != t.lines[i-1].at {
			distinct++
		}
	}
	// A fine clock seldom gives two requests one reading. With half as many again requests as
	// readings, the clock had coarse steps.
	t.coarse = len(t.lines) >= distinct+distinct/2 && distinct > 1
}
