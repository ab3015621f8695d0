// The tree of the prefixes that prompts share: each as a bar from the root, darker where more requests go, and as a table.
import { h, say, fmt, pill, table, num, panel, scroll, bar, swatch, keyed, names } from './dom.js'

const steps = [0.01, 0.05, 0.2, 0.5] // shares of requests, where the next shade begins
const short = (anchor) => anchor.slice(0, 8)

function pool(name) {
  const note = h('span', { class: 'small muted' }), bars = h('div', { class: 'bars', role: 'img', 'aria-label': 'Shared prefixes, as in the table' })
  const rows = table({
    caption: 'Shared prefixes', key: (p) => p.anchor,
    columns: [
      { name: 'Prefix', same: (p) => p.hot, cell: (p) => h('span', null, h('code', { text: short(p.anchor) }), ' ', p.hot && pill('hot')) },
      { name: 'Continues', cell: (p) => (p.above ? short(p.above) : 'the root') },
      num('Length', (p) => fmt.number(Math.round(p.tokens)) + ' tokens'),
      num('Of requests', (p) => fmt.percent(p.share)),
      num('Continuations', (p) => fmt.number(p.continued)),
      { name: 'Held by', cell: (p) => names(p.backends, p.holders) },
    ],
  })
  const key = ['below 1 %', '1 %', '5 %', '20 %', '50 %'].map((t, i) => swatch('h' + (i + 1), t))
  return {
    el: panel(`Tree of ${name}`, note, h('div', { class: 'stack' }, h('div', { class: 'legend' }, 'Of requests:', key), bars, scroll('Shared prefixes of ' + name, rows.el))),
    update({ requests, prefixes }) {
      const all = new Map(prefixes.map((p) => [p.anchor, p])), most = Math.max(...prefixes.map((p) => p.tokens))
      // way is the segments from the root to p.
      const way = (p) => (p ? [...way(all.get(p.above)), ['h' + (1 + steps.filter((s) => p.share >= s).length), (p.tokens - (all.get(p.above)?.tokens ?? 0)) / most]] : [])
      say(note, `shared by prompts of the last ${fmt.number(Math.round(requests))} requests at this router; a full bar is ${fmt.number(Math.round(most))} tokens`)
      bars.replaceChildren(...prefixes.map((p) => bar(short(p.anchor), way(p), fmt.percent(p.share))))
      rows.update(prefixes)
    },
  }
}

// tree keeps a panel for each model.
export function tree() {
  const el = h('div'), show = keyed(el, pool)
  return { el, update: ({ pools }) => show(pools.filter((p) => p.prefixes.length), (p) => [p.model || 'requests without a model', p.pool].filter(Boolean).join(' on ')) }
}
