// Opens every page of the dashboard in Chromium, and fails on console errors, a slow first paint, serious findings of axe-core, or if
// an engine cannot be drained and resumed by keyboard.
//   node pages.mjs http://HOST:PORT/ui/
// Environment: TOKEN (of the admin API), ENGINES, PAINT_MS, SHOTS (a directory for screenshots), CHROMIUM (the program).
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { chromium } from 'playwright-core'

const [url] = process.argv.slice(2)
const { TOKEN = '', ENGINES = '?', PAINT_MS = '1000', SHOTS = '', CHROMIUM = '/usr/bin/chromium' } = process.env
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8')
const wrong = []
const bad = (text) => { wrong.push(text); console.log('WRONG', text) }

// What a page shows once its first answers have come.
const pages = {
  fleet: (p) => p.getByRole('heading', { name: /routers? (are|is) up|router is up/ }),
  engines: (p) => p.getByRole('button', { name: /^Drain / }).first(),
  why: (p) => p.getByRole('button', { name: 'Explain' }),
  prefixes: (p) => p.getByRole('heading', { name: /refix/ }).first(),
  doctor: (p) => p.getByRole('heading', { name: /emulated-8b/ }).first(),
  clients: (p) => p.getByRole('cell', { name: 'nightly-batch' }),
  routers: (p) => p.getByRole('heading', { name: '3 routers up' }),
}

const browser = await chromium.launch({ executablePath: CHROMIUM, args: ['--no-sandbox', '--disable-gpu'] })
process.on('SIGTERM', () => browser.close().finally(() => process.exit(1)))

async function tab(scheme) {
  const page = await browser.newPage({ viewport: { width: 1280, height: 860 }, colorScheme: scheme })
  page.setDefaultTimeout(30000)
  page.on('console', (m) => { if (m.type() === 'error' && !m.text().includes('401 (Unauthorized)')) bad(`console: ${m.text()}`) })
  page.on('pageerror', (e) => bad(`error in a script: ${e.message}`))
  return page
}

async function paint(page, what) {
  const ms = await page.evaluate(() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? Infinity)
  console.log(`${what}: first paint ${ms.toFixed(0)} ms`)
  if (ms > Number(PAINT_MS)) bad(`${what}: first paint after ${ms.toFixed(0)} ms, want ${PAINT_MS} at most`)
}

async function findings(page, what) {
  await page.evaluate(axe)
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }))
  for (const v of violations) {
    const text = `${what}: axe-core: ${v.impact}: ${v.id}: ${v.help}: ${v.nodes.slice(0, 3).map((n) => n.target.join(' ')).join(', ')}`
    if (v.impact === 'serious' || v.impact === 'critical') bad(text)
    else console.log(text)
  }
}

async function visit(scheme) {
  let page = await tab(scheme)
  await page.goto(url)
  if (TOKEN) {
    await page.getByLabel('Token').fill('this-is-not-the-token')
    await page.keyboard.press('Enter')
    await page.getByRole('alert').getByText('That was not the token.').waitFor()
    await findings(page, 'token')
    await page.getByLabel('Token').fill(TOKEN)
    await page.keyboard.press('Enter')
  }
  await pages.fleet(page).waitFor()
  for (const [name, shown] of Object.entries(pages)) {
    await page.goto('about:blank')
    await page.goto(url + '#' + name)
    await shown(page).waitFor()
    await paint(page, `${name}, ${scheme}`)
    await findings(page, `${name}, ${scheme}`)
    if (SHOTS) await page.screenshot({ path: `${SHOTS}/${name}-${ENGINES}-${scheme}.png` })
  }
  return page
}

// press moves the focus with Tab to the element that fits, as a keyboard user does, and presses Enter.
async function press(page, name) {
  for (let i = 0; i < 60; i++) {
    await page.keyboard.press('Tab')
    const label = await page.evaluate(() => document.activeElement.getAttribute('aria-label') || document.activeElement.textContent)
    if (label === name) return page.keyboard.press('Enter')
  }
  bad(`Tab does not reach ${name}`)
}

async function drain(page) {
  await page.goto('about:blank')
  await page.goto(url + '#engines')
  await page.getByPlaceholder('Name, model or address').waitFor()
  await page.getByPlaceholder('Name, model or address').pressSequentially('engine-1')
  const row = page.getByRole('row').filter({ has: page.getByRole('button', { name: 'engine-1', exact: true }) })
  await row.waitFor()
  await press(page, 'Drain engine-1')
  await page.getByRole('dialog').waitFor()
  await findings(page, 'drain')
  await page.keyboard.type('tried by keyboard')
  await page.keyboard.press('Enter')
  await row.getByText('draining').waitFor()
  if (SHOTS) await page.screenshot({ path: `${SHOTS}/drained-${ENGINES}.png` })
  await page.getByPlaceholder('Name, model or address').focus()
  await press(page, 'Resume engine-1')
  await page.getByRole('dialog').waitFor()
  await page.keyboard.press('Enter')
  await row.getByText('active').waitFor()
  console.log('engine-1 was drained and resumed by keyboard')
}

async function explain(page) {
  await page.goto(url + '#why')
  await page.getByRole('textbox').first().fill(JSON.stringify({ model: 'emulated-8b', messages: [{ role: 'user', content: 'word '.repeat(2000) }] }))
  await page.getByRole('button', { name: 'Explain' }).click()
  await page.getByText('Candidates, the chosen one first').waitFor()
  await page.getByRole('button', { name: /^Look up ./ }).first().click()
  await page.getByText(/were expected in the cache/).first().waitFor()
  await findings(page, 'explained')
  if (SHOTS) await page.screenshot({ path: `${SHOTS}/explained-${ENGINES}.png`, fullPage: true })
}

// The levels of the tree must add up to the router's own counts, and be drawn.
async function depths(page) {
  await page.goto(url + '#prefixes')
  await page.getByRole('table', { name: 'Prompt tokens by depth' }).waitFor()
  const wrong = await page.evaluate(async () => {
    const { levels } = await import('./levels.js')
    const r = (prompt_tokens, cached_tokens) => ({ prompt_tokens, cached_tokens })
    const list = levels([r(300, 256), r(70000, 600), r(200, -1), r(-1, -1)])
    const sum = (key) => list.reduce((n, l) => n + l[key], 0)
    const first = [list[0].requests, list[0].tokens, list[0].cached], second = [list[1].requests, list[1].found, list[1].tokens, list[1].cached]
    const got = JSON.stringify([list.length, sum('tokens'), sum('cached'), first, second, levels([]).length])
    const want = JSON.stringify([10, 70300, 856, [2, 512, 512], [2, 1, 300, 256], 0])
    return got === want ? '' : `${got}, want ${want}`
  })
  if (wrong) bad(`levels of prompts: ${wrong}`)
  const bars = await page.locator('.barrow').count(), rows = await page.getByRole('table', { name: 'Prompt tokens by depth' }).getByRole('row').count() - 1
  if (bars < 2 || bars !== rows) bad(`prefixes: ${bars} bars, ${rows} rows of the table`)
  await findings(page, 'depths')
  if (SHOTS) await page.screenshot({ path: `${SHOTS}/depths-${ENGINES}.png`, fullPage: true })
}

// The demo's prompts are healthy, so the answer for ill ones is made up.
async function diagnose(page) {
  const finding = { field: 'system', kind: 'insertion', offset: 24, at: 30, differ_bytes: 190, again_bytes: 15830, share: 0.97, saved_tokens: 3.75e6, saved_prefill_s: 375, remedy: 'move what changes there' }
  const ill = { client: 'search', model: '<b>m</b>', verdict: 'mend', why: '31 % of the prompt tokens are computed again', samples: 48, seen_s: 1700, requests: 3620, prompt_tokens: 1.2e7, cached_tokens: 4e5, common_share: 0, shared_share: 0, findings: [finding] }
  await page.route('**/doctor', (r) => r.fulfill({ json: { node: 'x', per: 'hour', sampling: true, reporting: 3, applications: [ill] } }))
  await page.goto(url + '#doctor')
  await page.getByRole('heading', { name: '<b>m</b> · client search' }).waitFor()
  await page.getByRole('cell', { name: '3.8 M tokens, 6 min of prefill' }).waitFor()
  await findings(page, 'diagnosed')
  if (SHOTS) await page.screenshot({ path: `${SHOTS}/diagnosed-${ENGINES}.png`, fullPage: true })
  await page.unroute('**/doctor')
}

try {
  const page = await visit('light')
  await drain(page)
  await explain(page)
  await depths(page)
  await diagnose(page)
  await page.close()
  await visit('dark')
} catch (e) {
  bad(e.message)
}
await browser.close()
console.log(wrong.length ? `${wrong.length} wrong` : 'all well')
process.exitCode = wrong.length ? 1 : 0
