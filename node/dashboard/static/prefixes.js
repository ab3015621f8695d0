// Prefixes: those that many requests share, the engines that hold them, the tree that they are, and how deep prompts go.
import { h, say, api, may, fmt, table, num, scroll, names, head, Refused } from './dom.js'
import { shape } from './levels.js'
import { tree } from './tree.js'

export const prefixes = {
  name: 'prefixes', title: 'Prefixes',
  open() {
    const title = h('h1', { text: 'Hot prefixes' }), note = h('span', { class: 'muted' }), none = h('p', { class: 'hint' })
    const rows = table({
      key: (p) => p.anchor, sort: 2,
      columns: [
        { name: 'Prefix', same: (p) => p.anchor, cell: (p) => h('code', { text: p.anchor }) },
        num('Length', (p) => fmt.number(p.tokens) + ' tokens', (p) => p.tokens),
        num('Of requests', (p) => fmt.percent(p.share), (p) => -p.share),
        num('Keeps busy', (p) => fmt.number(p.work) + ' engines', (p) => p.work),
        { name: 'Held by', cell: (p) => names(p.backends, p.backends.length) },
        { name: 'Why', cell: (p) => p.why },
        num('Hot for', (p) => fmt.span(p.age_s), (p) => p.age_s),
      ],
    })
    const panel = h('section', { class: 'panel' }, scroll('Hot prefixes', rows.el))
    const depths = shape(), shared = tree()
    return {
      el: h('div', null, head(title, note), none, panel, shared.el, depths.el), every: 10000,
      async refresh() {
        const [receipts, status, t, a] = await Promise.all([api('/receipts'), api('/status'), api('/prefixes/tree'), may('/prefixes')])
        depths.update(receipts.receipts, status)
        shared.update(t)
        const list = a.prefixes || []
        panel.hidden = !list.length
        none.hidden = list.length > 0
        say(none, a instanceof Refused ? a.message : a.enabled ? 'No prefix is hot now: none is in so many requests that it needs several engines.' : 'Hot prefixes are switched off: grapevine prefixes hot --on switches them on.')
        say(note, list.length ? 'hashes and lengths only: a router keeps no prompt' : '')
        rows.update(list)
      },
    }
  },
}
