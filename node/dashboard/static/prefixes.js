// Prefixes: those that many requests share, the engines that hold them, and how deep prompts go.
import { h, say, api, fmt, table, Refused } from './dom.js'
import { shape } from './levels.js'

export const prefixes = {
  name: 'prefixes', title: 'Prefixes',
  open() {
    const title = h('h1', { text: 'Hot prefixes' }), note = h('span', { class: 'muted' }), none = h('p', { class: 'hint' })
    const rows = table({
      key: (p) => p.anchor, sort: 2,
      columns: [
        { name: 'Prefix', same: (p) => p.anchor, cell: (p) => h('code', { text: p.anchor }) },
        { name: 'Length', num: true, sort: (p) => p.tokens, cell: (p) => fmt.number(p.tokens) + ' tokens' },
        { name: 'Of requests', num: true, sort: (p) => -p.share, cell: (p) => fmt.percent(p.share) },
        { name: 'Keeps busy', num: true, sort: (p) => p.work, cell: (p) => fmt.number(p.work) + ' engines' },
        { name: 'Held by', cell: (p) => (p.backends.length > 4 ? p.backends.slice(0, 4).join(', ') + ` and ${p.backends.length - 4} more` : p.backends.join(', ') || '–') },
        { name: 'Why', cell: (p) => p.why },
        { name: 'Hot for', num: true, sort: (p) => p.age_s, cell: (p) => fmt.span(p.age_s) },
      ],
    })
    const panel = h('section', { class: 'panel' }, h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Hot prefixes' }, rows.el))
    const depths = shape()
    return {
      el: h('div', null, h('div', { class: 'head' }, title, note), none, panel, depths.el), every: 3000,
      async refresh() {
        const [receipts, status] = await Promise.all([api('/receipts'), api('/status')])
        depths.update(receipts.receipts, status)
        let a
        try { a = await api('/prefixes') } catch (e) {
          if (!(e instanceof Refused) || e.status === 401) throw e
          panel.hidden = true
          say(none, e.message)
          return
        }
        panel.hidden = a.prefixes.length === 0
        none.hidden = a.prefixes.length > 0
        say(none, a.enabled ? 'No prefix is hot now: none is in so many requests that it needs several engines.' : 'Hot prefixes are switched off: grapevine prefixes hot --on switches them on.')
        say(note, a.prefixes.length ? 'hashes and lengths only: a router keeps no prompt' : '')
        rows.update(a.prefixes)
      },
    }
  },
}
