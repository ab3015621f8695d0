// Doctor: where the prompts of an application diverge although they hold the same content behind it, and what a mended prompt would save.
import { h, say, api, fmt, pill, table, num, scroll, keyed, head, sentence } from './dom.js'

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
      num('Of requests', (f) => fmt.percent(f.share)),
      num('Would save an hour', (f) => `${fmt.number(f.saved_tokens)} tokens, ${fmt.span(f.saved_prefill_s)} of prefill`),
      { name: 'Remedy', cell: (f) => f.remedy },
    ],
  })
  const verdict = h('span'), why = h('p'), figures = h('p', { class: 'muted' })
  const found = scroll('Findings for ' + name, findings.el)
  return {
    el: h('section', { class: 'panel' }, head(h('h2', { text: name }), verdict), why, figures, found),
    update(a) {
      if (verdict.textContent !== a.verdict) verdict.replaceChildren(pill(a.verdict, levels[a.verdict]))
      say(why, sentence(a.why))
      say(figures, `${fmt.number(a.requests)} requests an hour, ${fmt.number(a.prompt_tokens)} prompt tokens, ${fmt.percent(a.prompt_tokens ? a.cached_tokens / a.prompt_tokens : null)} cached; ` +
        `${fmt.count(a.samples, 'sample')} over ${fmt.span(a.seen_s)}`)
      found.hidden = a.findings.length === 0
      findings.update(a.findings)
    },
  }
}

export const doctor = {
  name: 'doctor', title: 'Doctor',
  open() {
    const note = h('span', { class: 'muted' }), none = h('p', { class: 'hint' }), list = h('div', { class: 'stack' })
    const show = keyed(list, card)
    return {
      el: h('div', { class: 'stack' }, head(h('h1', { text: 'Do prompts share what they could?' }), note), none, list), every: 10000,
      async refresh() {
        const a = await api('/doctor')
        none.hidden = a.applications.length > 0
        say(none, a.sampling ? 'No request was sampled in the last half hour.' : 'This router samples no requests: set doctor_samples.')
        const beyond = a.applications.length - most
        say(note, `hashes and lengths of some requests, no text; ${fmt.count(a.reporting, 'router')}` + (beyond > 0 ? `; ${beyond} more: grapevine doctor` : ''))
        show(a.applications.slice(0, most), nameOf)
      },
    }
  },
}
