// Doctor: where the prompts of an application diverge although they hold the same content behind it, and what a mended prompt would save.
import { h, say, api, fmt, pill, table } from './dom.js'

const levels = { mend: 'bad', 'nothing to mend': 'ok' }
const most = 50 // applications shown

const nameOf = (a) => [a.model || 'no model', a.client && 'client ' + a.client, a.rule && 'rule ' + a.rule].filter(Boolean).join(' · ')

function what(f) {
  if (f.kind === 'order') return `the order of ${fmt.bytes(f.differ_bytes)} differs`
  return `up to ${fmt.bytes(f.differ_bytes)} differ, then ${fmt.bytes(f.again_bytes)} are the same again`
}

// card is one application's panel, which keeps its elements.
function card(name) {
  const findings = table({
    caption: 'Findings for ' + name, key: (f) => f.field + f.kind,
    columns: [
      { name: 'Where', same: (f) => f.field + f.offset, cell: (f) => h('span', null, h('b', { text: f.field }), `, byte ${f.offset}`) },
      { name: 'What', cell: what },
      { name: 'Of requests', num: true, cell: (f) => fmt.percent(f.share) },
      { name: 'Would save an hour', num: true, cell: (f) => `${fmt.number(f.saved_tokens)} tokens, ${fmt.span(f.saved_prefill_s)} of prefill` },
      { name: 'Remedy', cell: (f) => f.remedy },
    ],
  })
  const verdict = h('span'), why = h('p'), figures = h('p', { class: 'muted' })
  const scroll = h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Findings for ' + name }, findings.el)
  return {
    el: h('section', { class: 'panel' }, h('div', { class: 'head' }, h('h2', { text: name }), verdict), why, figures, scroll),
    update(a) {
      if (verdict.textContent !== a.verdict) verdict.replaceChildren(pill(a.verdict, levels[a.verdict]))
      say(why, a.why)
      say(figures, `${fmt.number(a.requests)} requests an hour, ${fmt.number(a.prompt_tokens)} prompt tokens, ${fmt.percent(a.prompt_tokens ? a.cached_tokens / a.prompt_tokens : null)} cached; ` +
        `${fmt.count(a.samples, 'sample')} over ${fmt.span(a.seen_s)}`)
      scroll.hidden = a.findings.length === 0
      findings.update(a.findings)
    },
  }
}

export const doctor = {
  name: 'doctor', title: 'Doctor',
  open() {
    const note = h('span', { class: 'muted' }), none = h('p', { class: 'hint' }), list = h('div', { class: 'stack' })
    const cards = new Map()
    return {
      el: h('div', { class: 'stack' }, h('div', { class: 'head' }, h('h1', { text: 'Do prompts share what they could?' }), note), none, list), every: 10000,
      async refresh() {
        const a = await api('/doctor')
        none.hidden = a.applications.length > 0
        say(none, a.sampling ? 'No request was sampled in the last half hour.' : 'This router samples no requests: set doctor_samples.')
        const beyond = a.applications.length - most
        say(note, `hashes and lengths of some requests, no text; ${fmt.count(a.reporting, 'router')}` + (beyond > 0 ? `; ${beyond} more: grapevine doctor` : ''))
        const shown = a.applications.slice(0, most).map((d) => {
          const name = nameOf(d)
          if (!cards.has(name)) cards.set(name, card(name))
          cards.get(name).update(d)
          return cards.get(name).el
        })
        if (shown.length !== list.children.length || shown.some((e, i) => e !== list.children[i])) list.replaceChildren(...shown)
      },
    }
  },
}
