// Why: what would decide about a request, and what it would cost on each candidate.
import { h, say, api, may, fmt, table, num, panel, scroll, bar, swatch, pill, head, alarm, sentence, Refused } from './dom.js'

const example = (model) => JSON.stringify({ model, messages: [{ role: 'user', content: 'Hello' }] }, null, 1)
const parts = [['wait_s', 'waits in the queue', 'b1'], ['compute_s', 'computes what is not cached', 'b2'], ['later_s', 'delays other requests', 'b3']]
const rungs = {
  stored: 'the engine that stores the response', cache: 'an engine that holds more of the prompt', hot: 'the replica set of a hot prefix',
  hash: 'rendezvous hashing, so that all routers choose alike', load: 'the least load', rotate: 'all were equal: in turn',
}

// priced draws the candidates of a decision as bars and as a table; the chosen one is the first.
function priced(candidates) {
  const sum = (c) => c.wait_s + c.compute_s + c.later_s
  const most = Math.max(...candidates.map(sum), 1e-9), inSeconds = candidates.some((c) => sum(c) > 0)
  const rows = table({
    caption: 'Candidates, the chosen one first', key: (c) => c.backend,
    columns: [
      { name: 'Engine', cell: (c) => c.backend }, num('Holds', (c) => fmt.number(c.held_tokens) + ' tokens' + (c.exact ? '' : ' (est.)')), num('Queue ahead', (c) => fmt.number(c.queued_tokens) + ' tokens'),
      num('In flight', (c) => c.active), num('Waits', (c) => fmt.seconds(c.wait_s)), num('Computes', (c) => fmt.seconds(c.compute_s)),
      num('Delays others', (c) => fmt.seconds(c.later_s)), num('Cost', (c) => (inSeconds ? fmt.seconds(c.cost) : fmt.number(c.cost))),
    ],
  })
  rows.update(candidates)
  const bars = inSeconds && [
    h('div', { class: 'legend' }, parts.map(([, label, cls]) => swatch(cls, label))),
    h('div', { class: 'bars', role: 'img', 'aria-label': candidates.map((c) => `${c.backend} ${fmt.seconds(c.cost)}`).join(', ') },
      candidates.map((c, i) => bar(c.backend, parts.map(([k, , cls]) => [cls, c[k] / most]), fmt.seconds(c.cost), i ? '' : 'chosen'))),
  ]
  return [bars, scroll('Candidates', rows.el)].flat()
}

const chosen = (r) => `${r.backend}, by ${rungs[r.rung] || r.rung}`

const explained = (r) => h('section', { class: 'panel stack' },
  h('h2', { text: chosen(r) }),
  h('p', { class: 'muted', text: `${fmt.number(r.prompt_tokens)} prompt tokens, ${fmt.number(r.predicted_tokens)} of them expected in its cache${r.exact ? ' (known by its events)' : ''}; strategy ${r.strategy}, ${fmt.count(r.eligible, 'eligible engine')}.` }),
  r.why && h('p', { text: sentence(r.why) }), r.note && h('p', { class: 'hint', text: r.note }), priced(r.candidates))

const tokens = (n) => (n < 0 ? 'an unknown number of' : fmt.number(n))
const time = (ms) => new Date(ms).toLocaleTimeString('en-GB')

const recorded = (r) => h('section', { class: 'panel stack' },
  h('h2', { text: r.backend ? chosen(r) : 'No engine was chosen' }),
  h('p', { class: 'muted' }, h('code', { text: r.id }), ` at ${time(r.at_ms)}: status ${r.status}${r.failed ? ' (' + r.failed + ')' : ''}, ${fmt.count(r.attempts, 'attempt')}, first token after ${r.ttft_s ? fmt.seconds(r.ttft_s) : '–'}, ${fmt.seconds(r.total_s)} in all.`),
  r.candidates && h('p', { text: `${tokens(r.prompt_tokens)} prompt tokens; ${fmt.number(r.predicted_tokens)} were expected in the cache, ${tokens(r.cached_tokens)} were there.` }), r.candidates && priced(r.candidates))

export const why = {
  name: 'why', title: 'Why',
  open(wanted) {
    const path = h('select', { id: 'path' }, ['/v1/chat/completions', '/v1/completions', '/v1/messages', '/v1/responses', '/v1/embeddings', '/generate'].map((p) => h('option', { text: p })))
    const body = h('textarea', { id: 'body', spellcheck: 'false' })
    body.value = example('')
    const id = h('input', { id: 'id', size: 40, placeholder: 'x-request-id', spellcheck: 'false' })
    const out = h('div', { 'aria-live': 'polite' }), error = alarm()
    // show replaces the answer; content is what ask resolves to.
    async function show(ask) {
      try {
        out.replaceChildren(...await ask())
        error.set()
      } catch (x) {
        error.set(x.message)
        out.replaceChildren()
      }
    }
    const lookUp = (text) => show(async () => {
      const a = await api('/receipts?id=' + encodeURIComponent(text))
      return a.receipts.length ? a.receipts.map(recorded) : [h('p', { class: 'hint', text: `${a.node} has no such request among its last 256. The header x-grapevine-node of an answer names its router (response_headers).` })]
    })
    const asking = (f) => ({ submit: (e) => { e.preventDefault(); f() } })
    const form = h('form', { class: 'panel stack', on: asking(() => show(async () => [explained(await api('/explain?path=' + encodeURIComponent(path.value), { method: 'POST', body: body.value }))])) },
      h('label', { for: 'body', text: 'A request, as a client sends it. It is not sent to any engine, nor kept.' }), body,
      h('div', { class: 'row' }, h('label', { for: 'path', text: 'Path' }), path, h('button', { class: 'main', text: 'Explain' })))
    const finding = h('form', { class: 'panel row', on: asking(() => lookUp(id.value.trim())) }, h('label', { for: 'id', text: 'Or the id of a request that this router served' }), id, h('button', { text: 'Look up' }))
    const latest = table({
      key: (r) => r.id + r.at_ms,
      columns: [
        { name: 'At', cell: (r) => time(r.at_ms) },
        { name: 'Request', same: (r) => r.id, cell: (r) => h('button', { type: 'button', class: 'link mono', text: r.id.length > 22 ? r.id.slice(0, 21) + '…' : r.id, 'aria-label': 'Look up ' + r.id, on: { click: () => { id.value = r.id; lookUp(r.id); scrollTo(0, 0) } } }) },
        { name: 'Model', cell: (r) => r.model },
        { name: 'Client', cell: (r) => r.client || '–' },
        { name: 'Engine', cell: (r) => r.backend || '–' },
        { name: 'By', same: (r) => r.rung, cell: (r) => pill(r.rung || 'none') },
        num('Prompt', (r) => (r.prompt_tokens < 0 ? '–' : fmt.number(r.prompt_tokens))),
        num('Expected', (r) => fmt.number(r.predicted_tokens)),
        num('Cached', (r) => (r.cached_tokens < 0 ? '–' : fmt.number(r.cached_tokens))),
        num('First token', (r) => (r.ttft_s ? fmt.seconds(r.ttft_s) : '–')),
        { name: 'Status', same: (r) => r.status, cell: (r) => pill(String(r.status), r.status < 400 ? 'ok' : r.status < 500 ? 'warn' : 'bad') },
      ],
    })
    const none = h('p', { class: 'hint' })
    const past = panel('Last requests', 'of this router; expected and cached are tokens of the prompt', none, scroll('Last requests', latest.el))
    if (wanted) { id.value = wanted; lookUp(wanted) }
    return {
      el: h('div', null, head(h('h1', { text: 'Why this engine?' })), form, finding, error.el, out, past), every: 3000,
      async refresh() {
        const a = await may('/receipts'), list = a.receipts || []
        say(none, a instanceof Refused ? a.message : 'No request has ended here yet.')
        none.hidden = list.length > 0
        if (list.length && body.value === example('')) body.value = example(list[0].model)
        latest.update(list.slice(0, 40))
      },
    }
  },
}
