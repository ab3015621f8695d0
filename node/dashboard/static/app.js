// The frame of the dashboard: pages by the address behind #, their refresh, the token.
import { h, say, api, token, fmt, Refused, toast } from './dom.js'
import { fleet } from './fleet.js'
import { engines } from './engines.js'
import { why } from './why.js'
import { prefixes } from './prefixes.js'
import { doctor } from './doctor.js'
import { clients } from './clients.js'
import { routers } from './routers.js'

// A page is { name, title, open(argument) -> { el, every, refresh() } }; every is in milliseconds.
const pages = [fleet, engines, why, prefixes, doctor, clients, routers]
const main = document.getElementById('main')
const where = document.getElementById('where')
let current = null, timer = 0, turn = 0

for (const p of pages) document.getElementById('nav').append(h('a', { href: '#' + p.name, text: p.title }))

document.getElementById('theme').addEventListener('click', () => {
  const root = document.documentElement
  root.dataset.theme = root.dataset.theme === 'dark' ? 'light' : 'dark'
  localStorage.setItem('grapevine-theme', root.dataset.theme)
})

function open() {
  const [name, argument] = decodeURIComponent(location.hash.slice(1)).split('/')
  const page = pages.find((p) => p.name === name) || pages[0]
  document.title = page.title + ' · grapevine'
  for (const a of document.querySelectorAll('nav a')) {
    if (a.hash === '#' + page.name) a.setAttribute('aria-current', 'page')
    else a.removeAttribute('aria-current')
  }
  current = page.open(argument)
  main.replaceChildren(current.el)
  refresh()
}

// refresh asks again, one question at a time, and not while nobody looks.
async function refresh() {
  clearTimeout(timer)
  const mine = ++turn, page = current
  let ok = true
  try {
    await page.refresh()
    say(where, refresh.node ? refresh.node : '')
    main.removeAttribute('aria-busy')
  } catch (e) {
    ok = false
    if (mine !== turn) return
    if (e instanceof Refused && e.status === 401) return login()
    say(where, e instanceof Refused ? e.message : 'This router does not answer. Trying again.')
    if (!(e instanceof Refused || e instanceof TypeError || e.name === 'TimeoutError' || e.name === 'AbortError')) throw e
  }
  if (mine === turn && !document.hidden) timer = setTimeout(refresh, ok ? page.every : 3000)
}

document.addEventListener('visibilitychange', () => document.hidden ? clearTimeout(timer) : refresh())
window.addEventListener('hashchange', () => { open(); main.focus({ preventScroll: true }); scrollTo(0, 0) })
document.addEventListener('grapevine-refresh', refresh)

function login() {
  const input = h('input', { type: 'password', id: 'token', autocomplete: 'off', required: true, size: 44 })
  const wrong = token.get() !== ''
  token.set('')
  const form = h('form', { class: 'stack', on: { submit: (e) => { e.preventDefault(); token.set(input.value.trim()); open() } } },
    h('h1', { text: 'This router wants its admin token' }),
    h('p', { class: 'muted', text: 'It is in the admin_token_file of the router. The token is kept until this tab is closed.' }),
    wrong && h('p', { class: 'error', role: 'alert', text: 'That was not the token.' }),
    h('label', { for: 'token', text: 'Token' }), h('div', { class: 'row' }, input, h('button', { class: 'main', text: 'Continue' })))
  main.replaceChildren(h('section', { class: 'panel' }, form))
  input.focus()
}

// identify shows which router answers.
export async function identify() {
  const s = await api('/status')
  refresh.node = `${s.node} · ${s.version} · up ${fmt.span(s.uptime_s)}`
  say(where, refresh.node)
  return s
}
identify().catch(() => {})
setInterval(() => { if (!document.hidden && refresh.node) identify().catch(() => {}) }, 30000)
open()
