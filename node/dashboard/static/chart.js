// Line charts of the history, each with its values as a table.
import { h, say, fmt, scroll } from './dom.js'

const height = 168, left = 46, right = 8, top = 8, bottom = 20

// nice returns a round number not below v, and its steps.
function nice(v) {
  if (!(v > 0)) return { max: 1, steps: 2 }
  const unit = 10 ** Math.floor(Math.log10(v))
  for (const [m, steps] of [[1, 2], [2, 2], [3, 3], [4, 2], [5, 5], [6, 3], [8, 4], [10, 2]]) if (m * unit >= v * 0.999) return { max: m * unit, steps }
}

const clock = (ms, seconds) => new Date(ms).toLocaleTimeString('en-GB', seconds ? {} : { hour: '2-digit', minute: '2-digit' })

// chart draws lines: [{ key, label, style }] of a span { columns, every_s, end_ms }. The largest value
// of the axis is max, or follows the data.
export function chart({ title, note, lines, format = fmt.number, max }) {
  const svg = h('svg', { role: 'img', 'aria-label': title })
  const legend = h('div', { class: 'legend' })
  const values = lines.map((l) => {
    const b = h('b')
    legend.append(h('span', null, h('span', { class: 'key ' + l.style }), l.label + ' ', b))
    return b
  })
  const when = h('span', { class: 'small muted right' })
  const tbody = h('tbody')
  const details = h('details', null, h('summary', { text: 'Values' }),
    scroll(title + ', values', h('table', null, h('caption', { class: 'vh', text: title }),
      h('thead', null, h('tr', null, h('th', { scope: 'col', text: 'Time' }), lines.map((l) => h('th', { scope: 'col', class: 'num', text: l.label })))), tbody)))
  const el = h('section', { class: 'panel' }, h('header', null, h('h2', { text: title }), note && h('span', { class: 'small muted', text: note }), when), legend, h('figure', null, svg), details)
  let span = null, at = -1, width = 0

  const count = () => (span ? span.columns[lines[0].key].length : 0)
  const x = (i, n) => left + (n < 2 ? 0 : (i / (n - 1)) * (width - left - right))
  const time = (i, seconds = true) => clock(span.end_ms - (count() - 1 - i) * span.every_s * 1000, seconds)
  function read() {
    const n = count(), i = at >= 0 && at < n ? at : n - 1
    lines.forEach((l, k) => say(values[k], n ? format(span.columns[l.key][i]) : '–'))
    say(when, at >= 0 && n ? time(i) : '')
  }
  function draw() {
    width = svg.clientWidth || 560
    svg.setAttribute('viewBox', `0 0 ${width} ${height}`)
    const n = count(), all = n ? lines.flatMap((l) => span.columns[l.key]).filter((v) => v !== null) : []
    const axis = max ? { max, steps: 4 } : nice(all.length ? Math.max(...all) : 0)
    const y = (v) => top + (1 - Math.min(v / axis.max, 1)) * (height - top - bottom)
    const parts = []
    for (let k = 0; k <= axis.steps; k++) {
      const v = (axis.max * k) / axis.steps
      parts.push(h('line', { class: 'gridline', x1: left, x2: width - right, y1: y(v), y2: y(v) }), h('text', { x: left - 8, y: y(v) + 4, 'text-anchor': 'end', text: format(v) }))
    }
    if (n > 1) {
      const ticks = Math.max(2, Math.min(5, Math.floor(width / 110)))
      for (let k = 0; k <= ticks; k++) {
        const i = (k / ticks) * (n - 1)
        parts.push(h('text', { x: x(i, n), y: height - 4, 'text-anchor': k === 0 ? 'start' : k === ticks ? 'end' : 'middle', text: time(i, n * span.every_s < 300) }))
      }
      ;[...lines].reverse().forEach((l, r) => {
        const column = span.columns[l.key]
        let d = '', area = '', open = -1
        const close = (i) => { if (open >= 0) area += `L${x(i, n)} ${y(0)}L${x(open, n)} ${y(0)}Z`; open = -1 }
        column.forEach((v, i) => {
          if (v === null) return close(i - 1)
          const p = `${open < 0 ? 'M' : 'L'}${x(i, n).toFixed(1)} ${y(v).toFixed(1)}`
          d += p
          area += p
          if (open < 0) open = i
        })
        close(n - 1)
        if (r === lines.length - 1 && area) parts.push(h('path', { class: 'area ' + l.style, d: area }))
        if (d) parts.push(h('path', { class: 'line ' + l.style, d }))
      })
      if (at >= 0 && at < n) parts.push(h('line', { class: 'cursor', x1: x(at, n), x2: x(at, n), y1: top, y2: height - bottom }))
    } else parts.push(h('text', { x: width / 2, y: y(axis.max / axis.steps) - 10, 'text-anchor': 'middle', text: 'The first values come in a few seconds.' }))
    svg.replaceChildren(...parts)
    svg.setAttribute('aria-label', `${title}: ` + lines.map((l) => `${l.label} ${n ? format(span.columns[l.key][n - 1]) : 'unknown'}`).join(', '))
    read()
    if (details.open) list()
  }
  function list() {
    const n = count(), step = Math.max(1, Math.floor(n / 60)), rows = []
    for (let i = n - 1; i >= 0; i -= step) rows.push(h('tr', null, h('th', { scope: 'row', text: time(i) }), lines.map((l) => h('td', { class: 'num', text: format(span.columns[l.key][i]) }))))
    tbody.replaceChildren(...rows)
  }
  svg.addEventListener('pointermove', (e) => {
    const n = count(), box = svg.getBoundingClientRect()
    if (n > 1) { at = Math.max(0, Math.min(n - 1, Math.round(((e.clientX - box.left - left) / (width - left - right)) * (n - 1)))); draw() }
  })
  svg.addEventListener('pointerleave', () => { at = -1; draw() })
  details.addEventListener('toggle', () => details.open && list())
  new ResizeObserver(() => { if (svg.clientWidth !== width) draw() }).observe(svg)
  return { el, update(s) { span = s; draw() } }
}
