package policy

import (
	"math"
	"sync"
	"sync/atomic"
)

const (
	defaultBytesPerToken = 4.0     // typical of English and code
	textsWindow          = 1 << 20 // tokens: the memory of both estimates, a few dozen long prompts
	bytesPrior           = 1 << 11 // tokens
	answersPrior         = 1 << 13 // tokens: a few follow-ups
	// Beyond these bounds the bytes do not describe the prompt (images by hash).
	minBytesPerToken, maxBytesPerToken = 1.0, 16.0
)

// modelStat is one model's bytes per token, and how much engines cache beyond a match.
type modelStat struct {
	bits          atomic.Uint64
	mu            sync.Mutex
	bytes, tokens float64

	answers      atomic.Uint64
	found, fresh float64 // decayed tokens beyond matches: cached ones, and all
}

func newModelStat() *modelStat {
	m := &modelStat{bytes: bytesPrior * defaultBytesPerToken, tokens: bytesPrior}
	m.bits.Store(math.Float64bits(defaultBytesPerToken))
	return m
}

func (m *modelStat) bytesPerToken() float64 { return math.Float64frombits(m.bits.Load()) }

func (m *modelStat) learn(promptBytes, promptTokens int) {
	if promptBytes <= 0 || promptTokens <= 0 {
		return
	}
	if r := float64(promptBytes) / float64(promptTokens); r < minBytesPerToken || r > maxBytesPerToken {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bytes += float64(promptBytes)
	m.tokens += float64(promptTokens)
	if m.tokens > textsWindow {
		m.bytes /= 2
		m.tokens /= 2
	}
	m.bits.Store(math.Float64bits(m.bytes / m.tokens))
}

// cachedAnswers returns the cached share beyond a match: generated answers.
func (m *modelStat) cachedAnswers() float64 { return math.Float64frombits(m.answers.Load()) }

// learnAnswers ignores counts below the match, which concern the tree.
func (m *modelStat) learnAnswers(held, cached, prompt float64) {
	if cached < held || cached > prompt || prompt <= held {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.found += cached - held
	m.fresh += prompt - held
	if m.fresh > textsWindow {
		m.found /= 2
		m.fresh /= 2
	}
	m.answers.Store(math.Float64bits(m.found / (m.fresh + answersPrior)))
}
