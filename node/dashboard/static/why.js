// Why: what would decide about a request, and what it would cost on each candidate.
import { h, say, api, fmt, table } from './dom.js'

const example = JSON.stringify({ model: '', messages: [{ role: 'user', content: 'Hello' }] }, null, 1)
const parts = [['wait_s', 'waits in the queue', 'b1'], ['compute_s', 'computes what is not cached', 'b2'], ['later_s', 'delays other requests', 'b3']]
const rungs = {
  stored: 'the engine that stores the response', cache: 'an engine that holds more of the prompt', hot: 'the replica set of a hot prefix',
  hash: 'rendezvous hashing, so that all routers choose alike', load: 'the least load', rotate: 'all were equal: in turn',
}

export function receipt(r) {
  const most = Math.max(...r.candidates.map((c) => c.wait_s + c.compute_s + c.later_s), 1e-9)
  const priced = r.candidates.some((c) => c.wait_s + c.compute_s + c.later_s > 0)
  const rows = table({
    caption: 'Candidates, the chosen one first', key: (c) => c.backend,
    columns: [
      { name: 'Engine', cell: (c) => c.backend }, { name: 'Holds', num: true, cell: (c) => fmt.number(c.held_tokens) + ' tokens' + (c.exact ? '' : ' (est.)') }, { name: 'Queue ahead', num: true, cell: (c) => fmt.number(c.queued_tokens) + ' tokens' },
      { name: 'In flight', num: true, cell: (c) => c.active }, { name: 'Waits', num: true, cell: (c) => fmt.seconds(c.wait_s) }, { name: 'Computes', num: true, cell: (c) => fmt.seconds(c.compute_s) },
      { name: 'Delays others', num: true, cell: (c) => fmt.seconds(c.later_s) }, { name: 'Cost', num: true, cell: (c) => (priced ? fmt.seconds(c.cost) : fmt.number(c.cost)) },
    ],
  })
  rows.update(r.candidates)
  return h('section', { class: 'panel stack' },
    h('h2', { text: `${r.backend}, by ${rungs[r.rung] || r.rung}` }),
    h('p', { class: 'muted', text: `${fmt.number(r.prompt_tokens)} prompt tokens, ${fmt.number(r.predicted_tokens)} of them expected in its cache${r.exact ? ' (known by its events)' : ''}; strategy ${r.strategy}, ${fmt.count(r.eligible, 'eligible engine')}.` }),
    r.why && h('p', { text: r.why[0].toUpperCase() + r.why.slice(1) + '.' }), r.note && h('p', { class: 'hint', text: r.note }),
    priced && h('div', { class: 'legend' }, parts.map(([, label, cls]) => h('span', null, h('i', { class: 'swatch ' + cls }), label))),
    priced && h('div', { class: 'bars', role: 'img', 'aria-label': r.candidates.map((c) => `${c.backend} ${fmt.seconds(c.cost)}`).join(', ') },
      r.candidates.map((c, i) => h('div', { class: 'barrow' + (i ? '' : ' chosen') }, h('span', { text: c.backend }),
        h('span', { class: 'track' }, parts.map(([k, , cls]) => h('i', { class: cls, css: { width: (100 * c[k]) / most + '%' } }))), h('span', { class: 'num', text: fmt.seconds(c.cost) })))),
    h('div', { class: 'scroll' }, rows.el))
}

export const why = {
  name: 'why', title: 'Why',
  open() {
    const path = h('select', { id: 'path' }, ['/v1/chat/completions', '/v1/completions', '/v1/messages', '/v1/responses', '/v1/embeddings', '/generate'].map((p) => h('option', { text: p })))
    const body = h('textarea', { id: 'body', spellcheck: 'false' })
    body.value = example
    const out = h('div', { 'aria-live': 'polite' }), error = h('p', { class: 'error', role: 'alert' })
    error.hidden = true
    const form = h('form', { class: 'panel stack', on: { submit: async (e) => {
      e.preventDefault()
      try {
        const r = await api('/explain?path=' + encodeURIComponent(path.value), { method: 'POST', body: body.value })
        error.hidden = true
        out.replaceChildren(receipt(r))
      } catch (x) {
        error.hidden = false
        say(error, x.message)
        out.replaceChildren()
      }
    } } }, h('label', { for: 'body', text: 'A request, as a client sends it. It is not sent to any engine, nor kept.' }), body,
    h('div', { class: 'row' }, h('label', { for: 'path', text: 'Path' }), path, h('button', { class: 'main', text: 'Explain' })), error)
    return { el: h('div', null, h('div', { class: 'head' }, h('h1', { text: 'Why this engine?' })), form, out), every: 60000, async refresh() {} }
  },
}
