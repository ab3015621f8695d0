// Clients and queue: who may use the router, how much of their limits they use over the fleet, and whose requests wait.
import { h, say, api, fmt, table, num, panel, scroll, head, named, alarm } from './dom.js'

const hits = (c) => (c.here.prompt_tokens ? c.here.cached_tokens / c.here.prompt_tokens : null)
const priority = { name: 'Priority', cell: (c) => c.priority }
const used = (n, of) => (of ? `${fmt.number(n)} of ${fmt.number(of)}` : fmt.number(n))

// queue shows what waits in the fleet, and nothing where requests wait inside engines.
function queue() {
  const note = h('span', { class: 'small muted' }), now = h('p', { class: 'muted small' })
  const waiting = [
    num('Waiting', (w) => fmt.number(w.requests)),
    num('Bodies', (w) => fmt.bytes(w.bytes)),
    num('Work', (w) => fmt.number(w.tokens) + ' tokens'),
    num('First in line for', (w) => (w.requests ? fmt.seconds(w.oldest_s) : '–')),
  ]
  const refused = (name, key) => num(name, (p) => fmt.number(p['refused_' + key]))
  const bands = table({ caption: 'By priority; 429 since the start', key: (p) => p.priority, columns: [
    priority, ...waiting, refused('429: no place', 'full'), refused('429: too long', 'timeout'), refused('429: deadline', 'deadline')] })
  const rows = table({ caption: 'By client', key: (c) => c.client + ' ' + c.priority, columns: [
    { name: 'Client', cell: (c) => c.client || 'no client' }, priority, ...waiting] })
  const state = (r) => r.missing || (r.on ? '' : 'has no queue')
  const routers = table({ caption: 'By router', key: (r) => r.node, columns: [
    { name: 'Router', same: state, cell: (r) => named(r.node, state(r)) },
    ...[...waiting, num('Leaves', (r) => (r.requests && r.drain_tokens_per_s ? fmt.number(r.drain_tokens_per_s) + ' tokens/s' : '–')), num('429', (r) => fmt.number(r.refused))]
      .map((c) => ({ ...c, cell: (r) => (state(r) ? '–' : c.cell(r)) }))] })
  const each = scroll('Queue by client', rows.el), every = scroll('Queue by router', routers.el)
  const el = panel('Queue', note, h('div', { class: 'stack' }, now, scroll('Queue by priority', bands.el), each, every))
  return {
    el,
    update(q) {
      el.hidden = !q.on
      if (!q.on) return
      say(note, q.routers.length > 1 ? `${q.routers.filter((r) => !r.missing).length} of ${q.routers.length} routers report theirs, ${q.node} at once and others every two seconds` : `at ${q.node}`)
      say(now, `${fmt.number(q.requests)} of ${fmt.number(q.max_requests)} requests wait, with ${fmt.bytes(q.bytes)} of ${fmt.bytes(q.max_bytes)}, for ${fmt.span(q.timeout_s)} at most` +
        (q.requests && q.drain_tokens_per_s ? `; ${fmt.number(q.drain_tokens_per_s)} tokens/s leave, so these take ${fmt.seconds(q.backlog_s)}` : '') + (q.more ? `; ${fmt.count(q.more, 'more line')}` : ''))
      bands.update(q.priorities)
      each.hidden = !q.clients.length
      rows.update(q.clients)
      every.hidden = q.routers.length < 2
      routers.update(q.routers)
    },
  }
}

export const clients = {
  name: 'clients', title: 'Clients and queue',
  open() {
    const title = h('h1', { text: 'Clients' }), note = h('span', { class: 'muted' })
    const error = alarm()
    const none = h('p', { class: 'hint' }, 'No ', h('code', { text: 'clients_file' }), ' is set: everybody who reaches the data port may use all models, without limits. ', h('code', { text: 'grapevine clients new NAME' }), ' makes a key.')
    const rows = table({
      key: (c) => c.name,
      columns: [
        { name: 'Client', sort: (c) => c.name, same: (c) => c.name + c.anonymous, cell: (c) => named(c.name, c.anonymous && 'requests without a key') },
        priority,
        num('In flight', (c) => used(c.requests, c.in_flight), (c) => c.requests),
        num('Tokens of the minute', (c) => (c.tokens_per_minute ? used(c.tokens_used, c.tokens_per_minute) : 'no limit'), (c) => (c.tokens_per_minute ? c.tokens_used / c.tokens_per_minute : 0)),
        { name: 'Models', cell: (c) => (c.models ? c.models.join(', ') : 'all') },
        num('Requests', (c) => fmt.number(c.here.requests) + (c.here.refused ? `, ${fmt.number(c.here.refused)} refused` : ''), (c) => c.here.requests),
        num('Hit rate', (c) => fmt.percent(hits(c)), (c) => hits(c) ?? -1),
        num('First token', (c) => (c.here.ttft_p50_s ? fmt.seconds(c.here.ttft_p50_s) : '–'), (c) => c.here.ttft_p50_s),
        num('GPU time', (c) => fmt.span(c.here.prefill_s + c.here.decode_s), (c) => c.here.prefill_s + c.here.decode_s),
        num('Saved', (c) => fmt.span(c.here.saved_s), (c) => c.here.saved_s),
      ],
    })
    const whose = h('p', { class: 'small muted' })
    const listed = h('section', { class: 'panel stack' }, scroll('Clients', rows.el), whose)
    const line = queue()
    listed.hidden = none.hidden = true
    return {
      el: h('div', { class: 'stack' }, head(title, note), error.el, none, listed, line.el), every: 3000,
      async refresh() {
        const [a, q] = await Promise.all([api('/clients'), api('/queue')])
        line.update(q)
        none.hidden = a.file !== ''
        listed.hidden = a.file === ''
        error.set(a.error && `${a.error}; the clients that were in force stay`)
        say(title, a.file ? fmt.count(a.clients.length, 'client') : 'Clients')
        say(note, a.file ? `${a.file}, in force for ${fmt.span(a.age_s)}` : '')
        say(whose, `Limits and requests in flight are those of the fleet, the columns from Requests on those of ${a.node} since its start ${fmt.span(a.uptime_s)} ago.`)
        rows.update(a.clients)
      },
    }
  },
}
