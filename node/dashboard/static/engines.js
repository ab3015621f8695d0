// Engines: a heat grid of large fleets, a table, drain and resume.
import { h, say, api, fmt, table, num, panel, scroll, swatch, pill, ask, toast, compare, choice, again, head, alarm } from './dom.js'

const gridFrom = 64, rowsAtOnce = 100
const levels = { active: 'ok', draining: 'warn', avoided: 'warn', down: 'bad' }
const steps = [0.05, 0.2, 0.5, 1, 3] // seconds of queue, where the next shade begins
const shade = (s) => steps.filter((x) => s >= x).length
const troubled = { down: 0, avoided: 1, draining: 2, active: 3 }

const closing = (text, cls) => h('button', { type: 'button', class: cls, text, on: { click: (e) => e.target.closest('dialog').close() } })

async function change(name, action) {
  const reason = h('input', { id: 'reason', size: 40, maxlength: 200, placeholder: 'e.g. new driver' })
  const error = alarm()
  const force = h('input', { type: 'checkbox', id: 'force' })
  const forcing = h('div', { class: 'row' }, force, h('label', { for: 'force', text: 'Do it all the same' }))
  forcing.hidden = true
  const draining = action === 'drain', verb = draining ? 'Drain' : 'Resume'
  const act = h('button', { class: 'main', text: verb })
  const form = h('form', { class: 'stack' },
    h('p', { class: 'muted', text: draining ? 'It gets no new requests; those that run on it end normally. All routers agree on it.' : 'It gets requests again.' }),
    draining && [h('label', { for: 'reason', text: 'Reason, for those who look later' }), reason], error.el, forcing,
    h('div', { class: 'row end' }, closing('Cancel'), act))
  form.addEventListener('submit', async (e) => {
    e.preventDefault()
    act.disabled = true
    try {
      await api('/backends' + (force.checked ? '?force=true' : ''), { method: 'PATCH', json: { names: [name], action, reason: reason.value || undefined } })
      form.closest('dialog').close('done')
    } catch (x) {
      error.set(x.message)
      forcing.hidden = x.status !== 409
      act.disabled = false
    }
  })
  if (await ask(`${verb} ${name}?`, form)) {
    toast(`${name}: ${draining ? 'draining' : 'resumed'}`)
    again()
  }
}

const pair = (name, value) => (value === undefined || value === null || value === '' ? [] : [h('dt', { text: name }), h('dd', { text: value })])

function details(b) {
  const v = b.health, e = b.engine
  return h('dl', null,
    pair('Address', b.url), pair('State', b.state + (b.since_s ? ` for ${fmt.span(b.since_s)}` : '')), pair('Reason', b.reason), pair('Drained by', b.drained_by), pair('Down by', b.down_by),
    pair('Models', b.models ? b.models.join(', ') : 'any'), pair('Listed by', b.source), pair('Weight', String(b.weight)), pair('Role', b.role),
    pair('Probes', v.reporters.length ? `${v.ok} of ${v.ok + v.bad} say it works (${v.reporters.join(', ')})${v.reason ? '; here: ' + v.reason : ''}` : 'none'),
    pair('Requests', `${b.fleet_active} of all routers, ${b.active} of this one`), pair('Queue', `${fmt.seconds(b.queue_s)} of prefill`),
    pair('Engine says', e ? `${e.running} running, ${e.waiting} waiting, ${e.kv_usage < 0 ? 'KV cache unknown' : fmt.percent(e.kv_usage) + ' of the KV cache'}, ${fmt.span(e.age_s)} ago (${e.from})` : 'nothing of its load'),
    pair('Prefill', `${fmt.number(b.rate)} tokens/s, as ${b.rate_from === 'engine' ? 'the engine reports' : 'measured in requests'}`),
    pair('Its cache is', b.cache.known + (b.cache.why ? `: ${b.cache.why}` : '')), pair('Horizon', fmt.span(b.horizon_s)), pair('Generation', String(b.generation)))
}

const kv = (b) => (b.engine?.kv_usage >= 0 ? h('span', null, h('span', { class: 'meter' }, h('i', { css: { width: 100 * Math.min(b.engine.kv_usage, 1) + '%' } })), h('span', { class: 'share', text: fmt.percent(b.engine.kv_usage) })) : '–')

export const engines = {
  name: 'engines', title: 'Engines',
  open(wanted) {
    let list = [], filter = '', state = 'all', most = rowsAtOnce
    const title = h('h1', { text: 'Engines' })
    const search = h('input', { type: 'search', placeholder: 'Name, model or address', 'aria-label': 'Filter the engines', size: 24, value: wanted || null, on: { input: () => { filter = search.value.trim().toLowerCase(); most = rowsAtOnce; draw() } } })
    filter = (wanted || '').toLowerCase()
    const states = choice('Only engines of this state', ['all', 'active', 'draining', 'avoided', 'down'], (s) => { state = s; draw() })
    states.press(state)
    const look = (b) => ask(b.name, details(b), h('div', { class: 'row end' }, closing('Close', 'main')))
    const rows = table({
      key: (b) => b.name, sort: 1,
      columns: [
        { name: 'Engine', sort: (b) => b.name, same: (b) => b.name, cell: (b) => h('button', { type: 'button', class: 'link', text: b.name, on: { click: () => look(list.find((x) => x.name === b.name) || b) } }) },
        { name: 'State', sort: (b) => troubled[b.state] + b.name, same: (b) => b.state, cell: (b) => pill(b.state, levels[b.state]) },
        { name: 'Models', cell: (b) => (!b.models ? 'any' : b.models.length > 2 ? `${b.models[0]} and ${b.models.length - 1} more` : b.models.join(', ')) },
        num('In flight', (b) => b.fleet_active, (b) => b.fleet_active),
        num('Waiting', (b) => (b.engine?.waiting >= 0 ? b.engine.waiting : '–'), (b) => b.engine?.waiting ?? -1),
        num('Queue', (b) => fmt.seconds(b.queue_s), (b) => b.queue_s),
        { name: 'KV cache', num: true, sort: (b) => b.engine?.kv_usage ?? -1, same: (b) => (b.engine?.kv_usage >= 0 ? fmt.percent(b.engine.kv_usage) : '–'), cell: kv },
        num('Prefill', (b) => fmt.number(b.rate) + ' tok/s', (b) => b.rate),
        { name: 'Cache is', cell: (b) => b.cache.known },
        { name: 'Change', hidden: true, num: true, same: (b) => String(b.drained), cell: (b) => h('button', { type: 'button', class: 'small', 'aria-label': `${b.drained ? 'Resume' : 'Drain'} ${b.name}`, text: b.drained ? 'Resume' : 'Drain', on: { click: () => change(b.name, b.drained ? 'resume' : 'drain') } }) },
      ],
    })
    const heat = h('div', { class: 'heat', role: 'img', on: { click: (e) => { const b = list.find((x) => x.name === e.target.dataset.name); if (b) look(b) } } })
    const legend = h('p', { class: 'small muted row' }, 'Prefill queue:', ['none', '50 ms', '0.2 s', '0.5 s', '1 s', '3 s'].map((t, i) => swatch('h' + i, t)), swatch('warn', 'draining or avoided'), swatch('bad', 'down'))
    const heated = panel('Heat', 'one cell for each engine, by name; click for details, or use the table', heat, legend)
    heated.hidden = true
    const more = h('button', { type: 'button', on: { click: () => { most += rowsAtOnce * 4; draw() } } })
    const empty = h('p', { class: 'hint' })
    const sources = h('div')
    const el = h('div', null, head(title, h('div', { class: 'row right' }, states.el, search)),
      sources, heated, h('section', { class: 'panel' }, scroll('Engines', rows.el), empty, h('p', { class: 'row' }, more)))

    const fits = (b) => (state === 'all' || b.state === state) && (!filter || [b.name, b.url, ...(b.models || [])].some((t) => t.toLowerCase().includes(filter)))
    const cells = new Map()
    function draw() {
      const shown = list.filter(fits).sort((a, b) => troubled[a.state] - troubled[b.state] || compare(a.name, b.name))
      rows.update(shown.slice(0, most))
      more.hidden = shown.length <= most
      say(more, `Show more of ${fmt.count(shown.length, 'engine')}`)
      empty.hidden = shown.length > 0
      say(empty, list.length ? 'No engine fits the filter.' : 'There is no engine yet. Add one with: grapevine backends add http://HOST:PORT')
      for (const b of states.buttons) { const s = b.dataset.name; say(b, s === 'all' ? 'All ' + list.length : `${s} ${list.filter((x) => x.state === s).length}`) }
      heated.hidden = list.length < gridFrom
      if (heated.hidden) return
      heat.style.setProperty('--cell', list.length > 600 ? '14px' : list.length > 150 ? '18px' : '26px')
      let hot = 0
      for (const b of [...list].sort((x, y) => compare(x.name, y.name))) {
        let c = cells.get(b.name)
        if (!c) { c = h('i', { 'data-name': b.name }); cells.set(b.name, c); heat.append(c) }
        const k = shade(b.queue_s || 0), cls = `${k ? 'h' + k : ''} ${levels[b.state] === 'ok' ? '' : levels[b.state]} ${fits(b) ? '' : 'dim'}`
        if (k >= 3) hot++
        if (c.className !== cls) c.className = cls
        const tip = `${b.name}: ${b.state}, ${fmt.seconds(b.queue_s)} of queue, ${b.fleet_active} in flight`
        if (c.title !== tip) c.title = tip
      }
      const there = new Set(list.map((b) => b.name))
      for (const [name, c] of cells) if (!there.has(name)) { c.remove(); cells.delete(name) }
      heat.setAttribute('aria-label', `${fmt.count(list.length, 'engine')}, ${hot} with half a second of queue or more`)
    }
    return {
      el,
      get every() { return list.length > 256 ? 5000 : 2000 },
      async refresh() {
        const a = await api('/backends')
        list = a.backends
        const bad = a.sources.filter((s) => s.error)
        sources.replaceChildren(...bad.map((s) => h('p', { class: 'error', text: `${s.source}: ${s.error}` })))
        draw()
      },
    }
  },
}
