// Clients: who may use the router, and how much of their limits they use over the fleet.
import { h, say, api, fmt, table } from './dom.js'

const hits = (c) => (c.here.prompt_tokens ? c.here.cached_tokens / c.here.prompt_tokens : null)
const used = (n, of) => (of ? `${fmt.number(n)} of ${fmt.number(of)}` : fmt.number(n))

export const clients = {
  name: 'clients', title: 'Clients',
  open() {
    const title = h('h1', { text: 'Clients' }), note = h('span', { class: 'muted' })
    const error = h('p', { class: 'error', role: 'alert' })
    const none = h('p', { class: 'hint' }, 'No ', h('code', { text: 'clients_file' }), ' is set: everybody who reaches the data port may use all models, without limits. ', h('code', { text: 'grapevine clients new NAME' }), ' makes a key.')
    const rows = table({
      key: (c) => c.name,
      columns: [
        { name: 'Client', sort: (c) => c.name, same: (c) => c.name + c.anonymous, cell: (c) => h('span', null, h('b', { text: c.name }), c.anonymous ? h('span', { class: 'muted', text: ' (requests without a key)' }) : null) },
        { name: 'Priority', cell: (c) => c.priority },
        { name: 'In flight', num: true, sort: (c) => c.requests, cell: (c) => used(c.requests, c.in_flight) },
        { name: 'Tokens of the minute', num: true, sort: (c) => (c.tokens_per_minute ? c.tokens_used / c.tokens_per_minute : 0), cell: (c) => (c.tokens_per_minute ? used(c.tokens_used, c.tokens_per_minute) : 'no limit') },
        { name: 'Models', cell: (c) => (c.models ? c.models.join(', ') : 'all') },
        { name: 'Requests', num: true, sort: (c) => c.here.requests, cell: (c) => fmt.number(c.here.requests) + (c.here.refused ? `, ${fmt.number(c.here.refused)} refused` : '') },
        { name: 'Hit rate', num: true, sort: (c) => hits(c) ?? -1, cell: (c) => fmt.percent(hits(c)) },
        { name: 'First token', num: true, sort: (c) => c.here.ttft_p50_s, cell: (c) => (c.here.ttft_p50_s ? fmt.seconds(c.here.ttft_p50_s) : '–') },
        { name: 'GPU time', num: true, sort: (c) => c.here.prefill_s + c.here.decode_s, cell: (c) => fmt.span(c.here.prefill_s + c.here.decode_s) },
        { name: 'Saved', num: true, sort: (c) => c.here.saved_s, cell: (c) => fmt.span(c.here.saved_s) },
      ],
    })
    const panel = h('section', { class: 'panel' }, h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Clients' }, rows.el))
    panel.hidden = error.hidden = none.hidden = true
    return {
      el: h('div', { class: 'stack' }, h('div', { class: 'head' }, title, note), error, none, panel), every: 3000,
      async refresh() {
        const a = await api('/clients')
        none.hidden = a.file !== ''
        panel.hidden = a.file === ''
        error.hidden = !a.error
        say(error, a.error ? `${a.error}; the clients of before stay in force` : '')
        say(title, a.file ? fmt.count(a.clients.length, 'client') : 'Clients')
        say(note, a.file ? `${a.file}, in force for ${fmt.span(a.age_s)}; limits are used by the whole fleet; from Requests on: at ${a.node} in ${fmt.span(a.uptime_s)}` : '')
        rows.update(a.clients)
      },
    }
  },
}
