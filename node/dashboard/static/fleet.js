// Fleet: the state in one sentence, five figures, four charts, and what caches save per model.
import { h, say, api, may, fmt, table, num, panel, scroll, choice, again, head, Refused } from './dom.js'
import { chart } from './chart.js'

const ranges = { '15 min': { coarse: false, points: 180 }, '1 hour': { coarse: false, points: 720 }, '12 hours': { coarse: true, points: 720 } }

// rings are kept between visits of the page; each answer brings only new points.
const rings = { fine: null, coarse: null }
let facts = { nodes: 0, reporting: 0 }

async function load(name) {
  const old = rings[name]
  const a = await api(`/history?coarse=${name === 'coarse'}&since_ms=${old ? old.end_ms : 0}`)
  facts = a
  const fits = old && a.end_ms >= old.end_ms && (a.end_ms === old.end_ms || a.columns.served.length < 720)
  if (fits) for (const k of Object.keys(a.columns)) a.columns[k] = a.end_ms === old.end_ms ? old.columns[k] : old.columns[k].concat(a.columns[k]).slice(-720)
  rings[name] = a
}

const part = (s, points) => s && { ...s, columns: Object.fromEntries(Object.entries(s.columns).map(([k, c]) => [k, c.slice(-points)])) }

const known = (c) => c.filter((x) => x !== null)
const sum = (c) => c.reduce((a, b) => a + b, 0)
const mean = (c) => { const v = known(c); return v.length ? sum(v) / v.length : null }
const last = (c) => c.at(-1) ?? null
const median = (c) => { const v = known(c).sort((a, b) => a - b); return v[Math.floor(v.length / 2)] ?? null }

function tile(label) {
  const value = h('span'), unit = h('small'), note = h('div', { class: 'note' })
  return { el: h('div', { class: 'tile' }, h('div', { class: 'label', text: label }), h('div', { class: 'value' }, value, unit), note), set(v, u, n, none) { say(value, v); say(unit, v === '–' ? '' : u || ''); say(note, v === '–' ? none || 'no figure yet' : n || ' ') } }
}

// sentence returns the level and the words for the state of the fleet, and a line for each trouble.
export function sentence(status, nodes, raft) {
  const e = status.engines, all = e.active + e.draining + e.down + e.avoided
  const up = nodes.nodes.filter((n) => n.state === 'alive').length
  const lost = nodes.nodes.filter((n) => n.state === 'failed')
  const trouble = []
  let level = 'ok'
  const worse = (l) => { if (l === 'bad' || level === 'ok') level = l }
  if (!status.ready) { worse('bad'); trouble.push(`${status.node} takes no traffic: ${status.not_ready}`) }
  for (const n of lost.slice(0, 4)) { worse('warn'); trouble.push(`router ${n.name} failed ${fmt.span(n.since_s)} ago${n.last_error ? ': ' + n.last_error : ''}`) }
  if (raft && !raft.leader) { worse('bad'); trouble.push('no leader: changes are refused, and routing goes on') }
  if (raft && raft.problem) { worse('warn'); trouble.push(raft.problem) }
  for (const t of e.attention.slice(0, 3)) {
    worse(t.state === 'draining' ? 'ok' : 'warn')
    trouble.push(`${t.name} ${t.since_s ? `has been ${t.state} for ${fmt.span(t.since_s)}` : `is ${t.state}`}${t.reason ? ': ' + t.reason : ''}`)
  }
  const more = all - e.active - Math.min(e.attention.length, 3)
  if (more > 0) trouble.push(`and ${fmt.count(more, 'more engine')}`)
  if (all > 0 && e.active === 0) worse('bad')
  if (status.certificate && status.certificate.problem) { worse('bad'); trouble.push('the certificate ' + status.certificate.problem) }
  const ready = lost.length ? `${up} of ${up + lost.length} routers are up` : up === 1 ? 'The router is up' : `All ${up} routers are up`
  const serve = all === 0 ? 'and there is no engine yet: every request is refused.' : e.active === all ? (all === 1 ? 'and its engine takes requests.' : `and all ${all} engines take requests.`) : `and ${e.active} of ${all} engines take requests.`
  return { level: all === 0 ? 'warn' : level, text: `${ready}, ${serve}`, trouble }
}

export const fleet = {
  name: 'fleet', title: 'Fleet',
  open() {
    const dot = h('span', { class: 'dot' }), title = h('h1', { text: 'Asking the router …' }), list = h('ul')
    const tiles = ['Requests', 'First token', 'Hit rate', 'In flight', 'GPU time saved'].map(tile)
    const charts = [
      chart({ title: 'Requests per second', lines: [{ key: 'served', label: 'answered', style: 's1' }, { key: 'refused', label: 'refused (429)', style: 's2' }, { key: 'failed', label: 'failed', style: 's3' }] }),
      chart({ title: 'First token', format: fmt.seconds, lines: [{ key: 'ttft_p50_s', label: 'median', style: 's1' }, { key: 'ttft_p99_s', label: '99th percentile', style: 's2' }] }),
      chart({ title: 'Hit rate', note: 'cached share of prompt tokens', max: 1, format: fmt.percent, lines: [{ key: 'hit_rate', label: 'grapevine', style: 's1' }, { key: 'random_hit_rate', label: 'round robin', style: 's4' }] }),
      chart({ title: 'Queue', note: 'requests', lines: [{ key: 'in_flight', label: 'in flight', style: 's1' }, { key: 'waiting', label: 'waiting in engines', style: 's2' }] }),
    ]
    let range = sessionStorage.getItem('grapevine-range') || '15 min'
    if (!ranges[range]) range = '15 min'
    const chosen = choice('Range of the charts', Object.keys(ranges), (name) => {
      range = name
      sessionStorage.setItem('grapevine-range', name)
      draw()
      again()
    })
    chosen.press(range)
    const models = table({
      key: (m) => m.model,
      columns: [
        { name: 'Model', cell: (m) => (m.model === '' ? '(none named)' : m.model === '*' ? '(not listed by any engine)' : m.model) },
        num('Requests/s', (m) => fmt.number(m.requests_per_s)),
        num('Prefill of whole prompts', (m) => fmt.seconds(m.prompts_s) + '/s'),
        num('left by caches', (m) => fmt.seconds(m.prefill_s) + '/s'),
        { name: 'What choosing caches gains', cell: (m) => m.verdict },
      ],
    })
    const affinity = panel('Does affinity pay?', 'this router, last minute', scroll('Does affinity pay?', models.el))
    affinity.hidden = true
    const reporting = h('p', { class: 'small muted' })
    const el = h('div', null,
      h('div', { class: 'lead' }, dot, h('div', null, title, list)),
      h('div', { class: 'tiles' }, tiles.map((t) => t.el)),
      head(h('h2', { text: 'History' }), h('div', { class: 'right' }, chosen.el)),
      h('div', { class: 'grid2' }, charts.map((c) => c.el)), affinity,
      h('p', { class: 'small muted', text: 'Round robin is an estimate: what the same requests would have found cached, had each gone to an engine drawn at random.' }), reporting)

    function draw() {
      const r = ranges[range], shown = part(r.coarse ? rings.coarse : rings.fine, r.points)
      if (shown) for (const c of charts) c.update(shown)
      const f = rings.fine && part(rings.fine, 12).columns
      if (!f) return
      const rate = mean(f.served), bad = mean(f.failed), refused = mean(f.refused)
      tiles[0].set(fmt.number(rate), 'per second', bad > 0 ? `${fmt.number(bad)}/s failed` : refused > 0 ? `${fmt.number(refused)}/s refused` : 'none failed')
      const [v, u] = fmt.seconds(median(f.ttft_p50_s)).split(' ')
      tiles[1].set(v, u, `99th percentile ${fmt.seconds(median(f.ttft_p99_s))}`)
      const hit = mean(f.hit_rate), random = mean(f.random_hit_rate)
      tiles[2].set(fmt.percent(hit).replace(' %', ''), '%', random === null ? 'round robin: unknown' : `round robin: ${fmt.percent(random)}`, rate > 0 ? 'no engine reports it' : '')
      const waiting = last(f.waiting)
      tiles[3].set(fmt.number(last(f.in_flight)), 'requests', waiting === null ? 'queue not reported' : `${fmt.number(waiting)} waiting in engines`)
      const long = rings.coarse, fine = rings.fine
      const useFine = !long || long.columns.saved_s.length < 2
      const ring = useFine ? fine : long
      const saved = sum(ring.columns.saved_s) * ring.every_s
      const [sv, su] = fmt.span(saved).split(' ')
      tiles[4].set(sv, su, `of prefill in ${fmt.span(ring.columns.saved_s.length * ring.every_s)}`)
    }

    let coarseAt = 0
    return {
      el, every: 3000,
      async refresh() {
        const history = [load('fine')]
        if (Date.now() - coarseAt > 30000) history.push(load('coarse').then(() => { coarseAt = Date.now() }))
        const [status, nodes, raft] = await Promise.all([api('/status'), api('/nodes'), may('/raft'), ...history])
        const s = sentence(status, nodes, raft instanceof Refused ? null : raft)
        dot.className = 'dot ' + s.level
        say(title, s.text)
        list.replaceChildren(...s.trouble.map((t) => h('li', { text: t })))
        draw()
        affinity.hidden = status.affinity.length === 0
        models.update(status.affinity)
        say(reporting, facts.reporting < facts.nodes ? `${facts.reporting} of ${facts.nodes} routers report their figures; the others run an older release, or have just started.` : '')
      },
    }
  },
}
