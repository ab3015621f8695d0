// How deep prompts go and how much of each depth engines had cached, as bars and as a table.
import { h, say, fmt, table, num, panel, scroll, bar, swatch } from './dom.js'

// Depths in tokens at which levels begin; the last one has no end.
const begins = [0, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536]

// levels sums up requests with known counts by depth, down to the deepest prompt.
export function levels(receipts) {
  const known = receipts.filter((r) => r.prompt_tokens > 0 && r.cached_tokens >= 0)
  return begins.map((from, i) => {
    const to = begins[i + 1] ?? Infinity, within = (n) => Math.max(0, Math.min(n, to) - from)
    const l = { from, to, requests: 0, found: 0, tokens: 0, cached: 0 }
    for (const r of known) {
      const cached = Math.min(r.cached_tokens, r.prompt_tokens)
      if (r.prompt_tokens > from) l.requests++
      if (cached > from) l.found++
      l.tokens += within(r.prompt_tokens)
      l.cached += within(cached)
    }
    return l
  }).filter((l) => l.requests > 0)
}

const digits = (n) => n.toLocaleString('en')
const name = (l) => (l.to === Infinity ? `from ${digits(l.from)}` : `${digits(l.from)} to ${digits(l.to)}`)

// shape draws the levels of receipts, and what tree (of /status) remembers in all.
export function shape() {
  const note = h('span', { class: 'small muted' }), facts = h('p', { class: 'muted small' })
  const bars = h('div', { class: 'bars', role: 'img', 'aria-label': 'Prompt tokens by depth, as in the table' })
  const rows = table({
    caption: 'Prompt tokens by depth', key: (l) => l.from,
    columns: [
      { name: 'Depth, tokens', cell: name },
      num('Prompts reach it', (l) => fmt.number(l.requests)),
      num('Cached parts reach it', (l) => fmt.number(l.found)),
      num('Tokens', (l) => fmt.number(l.tokens)),
      num('Cached', (l) => fmt.number(l.cached)),
      num('Share', (l) => fmt.percent(l.cached / l.tokens)),
    ],
  })
  const drawn = h('div', null, h('div', { class: 'stack' },
    h('div', { class: 'legend' }, swatch('b2', 'cached'), swatch('b3', 'computed')), bars,
    scroll('Prompt tokens by depth', rows.el)))
  const el = panel('Prompts by depth', note, h('div', { class: 'stack' }, facts, drawn))
  return {
    el,
    update(receipts, { node, tree, block_bytes: block }) {
      const list = levels(receipts), most = Math.max(...list.map((l) => l.tokens), 1)
      say(facts, `${node} remembers ${fmt.count(tree.facts, 'block')} on engines (a block of ${fmt.number(block)} bytes on two engines counts twice) in ${fmt.bytes(tree.bytes)} of ${fmt.bytes(tree.budget)}. ` +
        'Depths are those of its last requests.')
      say(note, list.length ? `the last ${fmt.count(list[0].requests, 'request')} at ${node} whose engine counted tokens` : '')
      drawn.hidden = !list.length
      bars.replaceChildren(...list.map((l) => bar(name(l), [['b2', l.cached / most], ['b3', (l.tokens - l.cached) / most]], fmt.percent(l.cached / l.tokens))))
      rows.update(list)
    },
  }
}
