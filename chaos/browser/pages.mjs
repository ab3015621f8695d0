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
    await page.getByLabel('Token', { exact: true }).fill('this-is-not-the-token')
    await page.keyboard.press('Enter')
    await page.getByRole('alert').getByText('That was not the token.').waitFor()
    await findings(page, 'token')
    await page.getByLabel('Token', { exact: true }).fill(TOKEN)
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

// An engine's details open and close by keyboard.
async function detail(page) {
  await page.goto(url + '#engines')
  const name = page.getByRole('button', { name: 'engine-0', exact: true })
  await name.focus()
  await page.keyboard.press('Enter')
  const dialog = page.getByRole('dialog', { name: 'engine-0' })
  await dialog.getByText('Its cache is').waitFor()
  await findings(page, 'details')
  if (SHOTS) await page.screenshot({ path: `${SHOTS}/details-${ENGINES}.png` })
  await page.keyboard.press('Escape')
  await dialog.waitFor({ state: 'detached' })
  if (!await name.evaluate((e) => e === document.activeElement)) bad('details: the focus does not return to the engine')
}

// A fleet with faults is made up of the answers of the healthy one: a router has failed, another one is refused.
async function faults(page) {
  await page.route('**/nodes', async (r) => {
    const a = await (await r.fetch()).json()
    Object.assign(a.nodes[2], { state: 'failed', since_s: 42, connected: false, last_error: 'dial tcp 10.0.0.13:7946: connect: connection refused' })
    a.lags_ms[0][2] = a.lags_ms[1][2] = null
    a.lags_ms[1][0] = 300
    a.refusals = [{ name: '<b>x</b>', addr: '10.0.0.9:7946', count: 3, age_s: 7, error: 'cluster "staging" here, "prod" there' }]
    await r.fulfill({ json: a })
  })
  await page.goto('about:blank')
  await page.goto(url + '#routers')
  await page.getByRole('row', { name: /^<b>x<.b> 10.0.0.9:7946 3 7 s ago cluster .* give both the same cluster$/ }).waitFor()
  await page.getByRole('cell', { name: 'no', exact: true }).first().waitFor()
  await findings(page, 'faults')
  if (SHOTS) await page.screenshot({ path: `${SHOTS}/faults-${ENGINES}.png` })
  await page.goto(url + '#fleet')
  await page.getByRole('heading', { name: /^2 of 3 routers are up, and/ }).waitFor()
  await page.getByText('router node-2 failed 42 s ago').waitFor()
  await findings(page, 'faults of the fleet')
  if (SHOTS) await page.screenshot({ path: `${SHOTS}/trouble-${ENGINES}.png` })
  await page.unroute('**/nodes')
}

// On a screen as narrow as a telephone's, what is wide scrolls in itself, not the page.
async function narrow(page) {
  await page.setViewportSize({ width: 390, height: 844 })
  for (const [name, shown] of Object.entries(pages)) {
    await page.goto('about:blank')
    await page.goto(url + '#' + name)
    await shown(page).waitFor()
    const width = await page.evaluate(() => document.scrollingElement.scrollWidth)
    if (width > 390) bad(`${name}: ${width} pixels wide on a screen of 390`)
    if (SHOTS) await page.screenshot({ path: `${SHOTS}/narrow-${name}-${ENGINES}.png` })
  }
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
  const drawn = page.locator('section').filter({ has: page.getByRole('heading', { name: 'Prompts by depth' }) })
  await drawn.locator('.barrow').nth(1).waitFor() // the first answers fill the table
  const bars = await drawn.locator('.barrow').count(), rows = await drawn.getByRole('table', { name: 'Prompt tokens by depth' }).getByRole('row').count() - 1
  if (bars < 2 || bars !== rows) bad(`prefixes: ${bars} bars, ${rows} rows of the table`)
  await findings(page, 'depths')
  if (SHOTS) await page.screenshot({ path: `${SHOTS}/depths-${ENGINES}.png`, fullPage: true })
}

// The tree is that of the traffic: what a prefix continues is in the list, shorter, and in no fewer requests.
async function tree(page) {
  await page.goto(url + '#prefixes')
  await page.getByRole('table', { name: 'Shared prefixes' }).waitFor()
  const { pools } = await page.evaluate((token) => fetch('../prefixes/tree', { headers: { Authorization: 'Bearer ' + token } }).then((r) => r.json()), TOKEN)
  for (const { requests, prefixes } of pools) {
    const all = new Map(prefixes.map((p) => [p.anchor, p]))
    for (const p of prefixes) {
      const above = p.above && all.get(p.above)
      if (p.share > 1 || !(requests > 0) || !(p.tokens > 0) || p.backends.length > p.holders || (p.above && !(above && above.tokens < p.tokens && above.share > p.share - 1e-9))) bad(`tree of prefixes: ${JSON.stringify({ p, above })}`)
    }
  }
  const shown = page.locator('section').filter({ has: page.getByRole('heading', { name: /^Tree of/ }) }).first()
  await shown.locator('.barrow').first().waitFor()
  const bars = await shown.locator('.barrow').count(), rows = await shown.getByRole('row').count() - 1
  if (bars < 1 || bars !== rows) bad(`tree of prefixes: ${bars} bars, ${rows} rows of the table`)
  await findings(page, 'tree')
  // The demo's system prompts share nothing, so a deeper tree is made up.
  const made = (anchor, above, tokens, share, continued, holders) => ({ anchor: anchor.repeat(4), above: above.repeat(4), tokens, share, continued, holders, backends: ['engine-0', 'engine-1', 'engine-2', 'engine-3', 'engine-4'].slice(0, holders), hot: holders > 4 })
  const deep = [made('aaaa', '', 2000, 0.62, 3, 40), made('bbbb', 'aaaa', 6000, 0.31, 210, 12), made('cccc', 'bbbb', 7000, 0.04, 4, 1), made('dddd', 'aaaa', 3500, 0.12, 96, 2), made('eeee', '', 8000, 0.008, 5, 0)]
  await page.route('**/prefixes/tree', (r) => r.fulfill({ json: { node: 'x', pools: [{ model: '<b>m</b>', pool: 'tier=big', requests: 1980.4, prefixes: deep }, { model: 'quiet', requests: 3, prefixes: [] }] } }))
  await page.goto('about:blank')
  await page.goto(url + '#prefixes')
  const panel = page.locator('section').filter({ has: page.getByRole('heading', { name: 'Tree of <b>m</b> on tier=big' }) })
  await panel.getByText('the last 1,980 requests at this router; a full bar is 8,000 tokens').waitFor()
  await panel.getByRole('row', { name: 'bbbbbbbb hot aaaaaaaa 6,000 tokens 31 % 210 engine-0, engine-1, engine-2, engine-3 and 8 more' }).waitFor()
  const ways = await panel.locator('.barrow .track').evaluateAll((tracks) => tracks.map((t) => [...t.children].map((i) => i.className + ' ' + i.style.width).join(', ')))
  const want = ['h5 25%', 'h5 25%, h4 50%', 'h5 25%, h4 50%, h2 12.5%', 'h5 25%, h3 18.75%', 'h1 100%']
  if (JSON.stringify(ways) !== JSON.stringify(want)) bad(`tree of prefixes: ${JSON.stringify(ways)}, want ${JSON.stringify(want)}`)
  await findings(page, 'deep tree')
  if (SHOTS) await panel.screenshot({ path: `${SHOTS}/tree-${ENGINES}.png` })
  await page.unroute('**/prefixes/tree')
}

// A queue with requests is made up; the fleet's own is there, and nothing is where there is none.
async function queue(page) {
  const heading = page.getByRole('heading', { name: 'Queue', exact: true })
  await page.goto(url + '#clients')
  await heading.waitFor()
  await page.getByText('3 of 3 routers report theirs').waitFor()
  const waits = (requests, tokens, oldest_s) => ({ requests, bytes: requests * 40000, tokens, oldest_s })
  const refused = (refused_full, refused_timeout, refused_deadline) => ({ refused_full, refused_timeout, refused_deadline })
  const full = { node: 'x', on: true, ...waits(1311, 2.1e7, 8.25), max_requests: 2048, max_bytes: 6.4e7, timeout_s: 30, drain_tokens_per_s: 512000, backlog_s: 41, more: 2,
    priorities: [{ priority: 'interactive', ...waits(11, 1.6e5, 0.4), ...refused(0, 0, 3) }, { priority: 'default', ...waits(0, 0, 0), ...refused(0, 0, 0) }, { priority: 'batch', ...waits(1300, 2e7, 8.25), ...refused(1204, 17, 0) }],
    clients: [{ client: 'nightly-<b>batch</b>', priority: 'batch', ...waits(1300, 2e7, 8.25) }, { client: '', priority: 'interactive', ...waits(11, 1.6e5, 0.4) }],
    routers: [{ node: 'x', on: true, ...waits(1300, 2e7, 8.25), drain_tokens_per_s: 500000, refused: 1221 }, { node: 'y', on: true, ...waits(11, 1.6e5, 0.4), drain_tokens_per_s: 12000, refused: 3 },
      { node: 'w', on: true, ...waits(0, 0, 0), drain_tokens_per_s: 7000, refused: 0 }, { node: 'z', missing: 'has failed', on: false, ...waits(0, 0, 0) }] }
  const off = { node: 'x', on: false, priorities: [], clients: [], routers: [] }
  for (const answer of [full, off]) {
    await page.route('**/queue', (r) => r.fulfill({ json: answer }))
    await page.goto('about:blank')
    await page.goto(url + '#clients')
    await page.getByRole('cell', { name: 'search' }).waitFor()
    if (answer.on) {
      await page.getByText('1,311 of 2,048 requests wait, with 52.4 MB of 64.0 MB, for 30 s at most; 512.0 k tokens/s leave, so these take 41.0 s; 2 more lines').waitFor()
      await page.getByRole('cell', { name: 'nightly-<b>batch</b>' }).waitFor()
      await page.getByText('3 of 4 routers report theirs').waitFor()
      await page.getByRole('row', { name: 'x 1,300 52.0 MB 20.0 M tokens 8.25 s 500.0 k tokens/s 1,221' }).waitFor()
      await page.getByRole('row', { name: 'w 0 0 B 0 tokens – – 0' }).waitFor() // its rate is that of requests which no longer wait
      await page.getByRole('row', { name: 'z (has failed) – – – – – –' }).waitFor()
      await page.getByRole('row', { name: 'batch 1,300 52.0 MB 20.0 M tokens 8.25 s 1,204 17 0' }).waitFor()
      await findings(page, 'queue')
      if (SHOTS) await page.screenshot({ path: `${SHOTS}/queue-${ENGINES}.png`, fullPage: true })
    } else if (await heading.isVisible()) bad('clients: a queue is shown, and there is none')
    await page.unroute('**/queue')
  }
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
  await tree(page)
  await queue(page)
  await diagnose(page)
  await detail(page)
  await faults(page)
  await narrow(page)
  await page.close()
  await visit('dark')
} catch (e) {
  bad(e.message)
}
await browser.close()
console.log(wrong.length ? `${wrong.length} wrong` : 'all well')
process.exitCode = wrong.length ? 1 : 0
