package engine

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// TokenBytes is the length of every emulated token: a fixed 4 bytes, about what real tokenizers
// make of English and code. A partial last token of a prompt is not counted.
const TokenBytes = 4

// KeyTokens is the number of tokens per key of the live engine's prefix cache.
const KeyTokens = 16

const keyBytes = KeyTokens * TokenBytes

func tokensIn(n int) int { return max(n/TokenBytes, 1) }

// appendKeys appends the chained key of every full block of text[from:]. from is a block boundary
// and parent the key before it, or the root's.
func appendKeys(dst []uint64, parent uint64, text []byte) []uint64 {
	for ; len(text) >= keyBytes; text = text[keyBytes:] {
		parent = xxh3.HashSeed(text[:keyBytes], parent)
		dst = append(dst, parent)
	}
	return dst
}

func rootKey(adapter, salt string) uint64 {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(adapter)))
	return xxh3.Hash(append(append(b, adapter...), salt...))
}

// newSeat makes the job of one prompt. Its reply is written in advance; the model decides only the
// times.
func newSeat(root uint64, text []byte, output, variant int, watch bool) *seat {
	reply := appendReply(nil, xxh3.HashSeed(text, root+uint64(variant)), output)
	keys := appendKeys(make([]uint64, 0, (len(text)+len(reply))/keyBytes+1), root, text)
	prompt := len(keys)
	// The first block of the reply begins with the end of the prompt.
	parent := root
	if prompt > 0 {
		parent = keys[prompt-1]
	}
	rest := append(append([]byte(nil), text[prompt*keyBytes:]...), reply...)
	keys = appendKeys(keys, parent, rest)
	s := &seat{reply: reply}
	s.job = Job{
		Keys: keys[:prompt:prompt], KeyTokens: KeyTokens, Watch: watch,
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
