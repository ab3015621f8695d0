// Building and updating elements, the node's API, and how values are written.

// h makes an element. Attributes: text, class, on (listeners by event), css (custom properties), and
// any HTML attribute; null and false are left out.
export function h(tag, attrs, ...children) {
  const svg = /^(svg|path|line|text|circle|g|rect)$/.test(tag)
  const e = svg ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag)
  for (const [name, value] of Object.entries(attrs || {})) {
    if (value === null || value === undefined || value === false) continue
    if (name === 'on') for (const [event, f] of Object.entries(value)) e.addEventListener(event, f)
    else if (name === 'css') for (const [p, v] of Object.entries(value)) e.style.setProperty(p, v)
    else if (name === 'text') e.textContent = value
    else e.setAttribute(name, value === true ? '' : value)
  }
  e.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false))
  return e
}

// say changes a text only if it differs, so that screen readers and selections are left alone.
export function say(e, text) {
  if (e.textContent !== text) e.textContent = text
}

export function toast(text) {
  const t = document.getElementById('toast')
  say(t, text)
  clearTimeout(toast.timer)
  toast.timer = setTimeout(() => say(t, ''), 6000)
}

// The admin token lives as long as the tab.
const tokenKey = 'grapevine-token'
export const token = {
  get: () => sessionStorage.getItem(tokenKey) || '',
  set: (t) => (t ? sessionStorage.setItem(tokenKey, t) : sessionStorage.removeItem(tokenKey)),
}

export class Refused extends Error {
  constructor(status, answer) {
    super([answer.place && !answer.error.startsWith(answer.place) ? answer.place + ': ' : '', answer.error, answer.remedy ? ': ' + answer.remedy : ''].join(''))
    this.status = status
  }
}

// api asks this node; path begins with a slash. It throws Refused, or a TypeError if nobody answers.
export async function api(path, { method = 'GET', json, body } = {}) {
  const headers = {}
  if (token.get()) headers.Authorization = 'Bearer ' + token.get()
  if (json !== undefined) {
    headers['Content-Type'] = 'application/json'
    body = JSON.stringify(json)
  }
  const r = await fetch('..' + path, { method, headers, body, cache: 'no-store', signal: AbortSignal.timeout(15000) })
  const text = await r.text()
  let answer
  try { answer = JSON.parse(text) } catch { answer = { error: text.slice(0, 200) || r.statusText } }
  if (!r.ok) throw new Refused(r.status, answer)
  return answer
}

// may asks what a node can refuse: it resolves to its answer or to what it says, if that is not that it wants a token.
export const may = (path) => api(path).catch((e) => { if (e instanceof Refused && e.status !== 401) return e; throw e })

const digits = (v, n) => v.toLocaleString('en', { minimumFractionDigits: n, maximumFractionDigits: n })

export const fmt = {
  number(v) {
    if (v === null || v === undefined || Number.isNaN(v)) return '–'
    if (v !== 0 && Math.abs(v) < 10 && !Number.isInteger(v)) return digits(v, v < 1 ? 2 : 1)
    return Math.abs(v) < 1e4 ? digits(v, 0) : Math.abs(v) < 1e6 ? digits(v / 1e3, 1) + ' k' : digits(v / 1e6, 1) + ' M'
  },
  percent: (v) => (v === null || v === undefined ? '–' : digits(100 * v, v > 0 && v < 0.1 ? 1 : 0) + ' %'),
  // seconds for durations that matter in milliseconds
  seconds(s) {
    if (s === null || s === undefined) return '–'
    if (s === 0) return '0 s'
    const ms = s * 1000
    return ms < 9.95 ? digits(ms, 1) + ' ms' : ms < 999.5 ? digits(ms, 0) + ' ms' : s < 99.5 ? digits(s, s < 9.95 ? 2 : 1) + ' s' : fmt.span(s)
  },
  span(s) {
    if (s === null || s === undefined) return '–'
    if (s < 90) return Math.round(s) + ' s'
    if (s < 5400) return Math.round(s / 60) + ' min'
    if (s < 172800) return digits(s / 3600, s < 36000 ? 1 : 0) + ' h'
    return Math.round(s / 86400) + ' days'
  },
  bytes: (b) => (b < 1e3 ? b + ' B' : b < 1e6 ? digits(b / 1e3, 1) + ' kB' : b < 1e9 ? digits(b / 1e6, 1) + ' MB' : digits(b / 1e9, 1) + ' GB'),
  count: (n, noun) => `${digits(n, 0)} ${noun}${n === 1 ? '' : 's'}`,
}

// sentence makes one of the words of a node.
export const sentence = (words) => words[0].toUpperCase() + words.slice(1) + (words.endsWith('.') ? '' : '.')

// compare sorts engine-2 before engine-10.
const natural = new Intl.Collator('en', { numeric: true })
export const compare = (x, y) => (typeof x === 'string' ? natural.compare(x, y) : x - y)

// pill is a state in words on a colour; level is ok, warn, bad or empty.
export const pill = (text, level) => h('span', { class: 'state ' + (level || ''), text })

// choice is a group of buttons of which one is pressed; pick(name) changes it, and is called with each click.
export function choice(label, list, pick) {
  const buttons = list.map((name) => h('button', { type: 'button', 'data-name': name, text: name, on: { click: () => { press(name); pick(name) } } }))
  const press = (name) => buttons.forEach((b) => b.setAttribute('aria-pressed', String(b.dataset.name === name)))
  return { el: h('div', { class: 'seg', role: 'group', 'aria-label': label }, buttons), buttons, press }
}

// head is a page's title and what stands beside it; again has the page ask at once.
export const head = (...content) => h('div', { class: 'head' }, content)
export const again = () => document.dispatchEvent(new Event('grapevine-refresh'))

// alarm is a place for an error, hidden without one.
export function alarm() {
  const el = h('p', { class: 'error', role: 'alert', hidden: true })
  return { el, set(text) { el.hidden = !text; say(el, text || '') } }
}

// scroll lets the keyboard reach what is wider than the page; panel frames what belongs together.
export const scroll = (name, el) => h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': name }, el)
export const panel = (title, note, ...content) => h('section', { class: 'panel' }, h('header', null, h('h2', { text: title }), typeof note === 'string' ? h('span', { class: 'small muted', text: note }) : note), ...content)

// bar is a row with a label, segments [class, width of 1] of a track, and a value; swatch explains a segment's colour.
export const bar = (label, segments, value, cls = '') => h('div', { class: 'barrow ' + cls }, h('span', { text: label }),
  h('span', { class: 'track' }, segments.map(([c, width]) => h('i', { class: c, css: { width: 100 * width + '%' } }))), h('span', { class: 'num', text: value }))
export const swatch = (cls, label) => h('span', null, h('i', { class: 'swatch ' + cls }), label)

// keyed shows the parts of el that a list needs; make(name) -> { el, update(item) } makes each once.
export function keyed(el, make) {
  const made = new Map()
  return (list, name) => {
    const shown = list.map((item) => {
      const n = name(item)
      if (!made.has(n)) made.set(n, make(n))
      made.get(n).update(item)
      return made.get(n).el
    })
    if (shown.length !== el.children.length || shown.some((e, i) => e !== el.children[i])) el.replaceChildren(...shown)
  }
}

// named is a table's cell of a name with a remark.
export const named = (name, remark) => h('span', { class: 'named' }, h('b', { text: name }), remark ? h('span', { class: 'muted', text: ` (${remark})` }) : null)

// names lists the first engines of so many.
export const names = (list, all) => (list.length ? list.slice(0, 4).join(', ') + (all > 4 ? ` and ${all - 4} more` : '') : '–')

// num is a column of numbers.
export const num = (name, cell, sort) => ({ name, num: true, cell, sort })

// table keeps its rows by key and changes only the cells that differ, so that focus and selection
// survive updates. A column: { name, num, cell(row) -> text or element, same(row) -> what an element
// depends on, sort(row) }.
export function table({ caption, columns, key, sort, mark }) {
  const body = h('tbody')
  const rows = new Map()
  const order = { column: sort ?? -1, down: false }
  let shown = []
  const heads = columns.map((c, i) => {
    const label = c.sort ? h('button', { type: 'button', text: c.name, on: { click: () => { order.down = order.column === i && !order.down; order.column = i; draw() } } }) : c.hidden ? h('span', { class: 'vh', text: c.name }) : c.name
    return h('th', { scope: 'col', class: c.num ? 'num' : null }, label)
  })
  const el = h('table', null, caption && h('caption', { text: caption }), h('thead', null, h('tr', null, heads)), body)
  function draw() {
    heads.forEach((e, i) => { if (i === order.column && columns[i].sort) e.setAttribute('aria-sort', order.down ? 'descending' : 'ascending'); else e.removeAttribute('aria-sort') })
    let list = shown
    const by = columns[order.column]?.sort
    if (by) {
      list = [...shown].sort((a, b) => (order.down ? -1 : 1) * compare(by(a), by(b)))
    }
    const seen = new Set()
    let before = body.firstChild
    for (const row of list) {
      const k = key(row)
      seen.add(k)
      let r = rows.get(k)
      if (!r) {
        r = { tr: h('tr', null, columns.map((c) => h('td', { class: c.num ? 'num' : null }))), was: [] }
        rows.set(k, r)
      }
      if (mark) r.tr.className = mark(row)
      columns.forEach((c, i) => {
        const td = r.tr.children[i]
        if (c.same) {
          const now = c.same(row)
          if (r.was[i] !== now) { r.was[i] = now; td.replaceChildren(c.cell(row)) }
        } else say(td, String(c.cell(row)))
      })
      if (r.tr === before) before = before.nextSibling
      else body.insertBefore(r.tr, before)
    }
    for (const [k, r] of rows) if (!seen.has(k)) { r.tr.remove(); rows.delete(k) }
  }
  return { el, update(list) { shown = list; draw() } }
}

// ask opens a dialog and resolves with what it is closed with: null if called off.
export function ask(title, content, actions) {
  return new Promise((done) => {
    const d = h('dialog', { 'aria-label': title }, h('h2', { text: title }), content, actions)
    d.addEventListener('close', () => { d.remove(); done(d.returnValue || null) })
    document.body.append(d)
    d.showModal()
  })
}
