package engine

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// TokenBytes is the length of every emulated token: a fixed 4 bytes, about what real tokenizers
// make of English and code. A partial last token of a prompt is not counted.
const TokenBytes = 4

// KeyTokens is the number of tokens per key of the live engine's prefix cache. An engine that publishes
// cache events has keys of Config.BlockTokens, because its events name whole blocks.
const KeyTokens = 16

func tokensIn(n int) int { return max(n/TokenBytes, 1) }

// appendKeys appends the chained key of every full block of text, which begins at a block boundary.
// parent is the key before it, or the root's; block is in bytes.
func appendKeys(dst []uint64, parent uint64, text []byte, block int) []uint64 {
	for ; len(text) >= block; text = text[block:] {
		parent = xxh3.HashSeed(text[:block], parent)
		dst = append(dst, parent)
	}
	return dst
}

func rootKey(adapter, salt string) uint64 {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(adapter)))
	return xxh3.Hash(append(append(b, adapter...), salt...))
}

// newSeat makes the job of one prompt. Its reply is written in advance; the model decides only the
// times. keyTokens is the number of tokens per key.
func newSeat(root uint64, text []byte, output, variant int, watch bool, keyTokens int) *seat {
	block := keyTokens * TokenBytes
	reply := appendReply(nil, xxh3.HashSeed(text, root+uint64(variant)), output)
	keys := appendKeys(make([]uint64, 0, (len(text)+len(reply))/block+1), root, text, block)
	prompt := len(keys)
	// The first block of the reply begins with the end of the prompt.
	parent := root
	if prompt > 0 {
		parent = keys[prompt-1]
	}
	rest := append(append([]byte(nil), text[prompt*block:]...), reply...)
	keys = appendKeys(keys, parent, rest, block)
	s := &seat{prompt: text, reply: reply}
	s.job = Job{
		Keys: keys[:prompt:prompt], KeyTokens: keyTokens, Watch: watch,
		PromptTokens: tokensIn(len(text)), OutputTokens: output,
	}
	if len(text) >= TokenBytes { // else the single token is longer than its text, and the blocks do not line up
		s.job.OutKeys = keys[prompt:]
	}
	return s
}

// appendReply appends tokens of text derived from seed: four letters, or a space and three. They
// need no JSON escape, and no space is at either end because clients trim.
func appendReply(dst []byte, seed uint64, tokens int) []byte {
	const letters = "etaoinshrdlucmfw"
	for i := range tokens {
		seed += 0x9e3779b97f4a7c15
		z := (seed ^ seed>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		z ^= z >> 31
		first := letters[z&15]
		if i > 0 && z>>16&1 == 0 {
			first = ' '
		}
		dst = append(dst, first, letters[z>>4&15], letters[z>>8&15], letters[z>>12&15])
	}
	return dst
}

func appendText(dst []byte, ids []uint32) []byte {
	for _, id := range ids {
		dst = binary.LittleEndian.AppendUint32(dst, id)
	}
	return dst
}
