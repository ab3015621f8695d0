// Routers: the nodes, who hears whom and how late, the Raft group, refused joins.
import { h, say, api, may, fmt, table, num, panel, scroll, pill, head, named, alarm, Refused } from './dom.js'

const matrixUpTo = 32
const levels = { alive: 'ok', failed: 'bad', left: '' }
const late = (ms) => (ms === null ? 'lag2' : ms < 250 ? 'lag0' : ms < 1500 ? 'lag1' : 'lag2')

const remedies = [
  [/cluster/i, 'give both the same cluster'], [/secret|key id|keyid/i, 'give both the same secret'], [/block/i, 'give both the same block_bytes'],
  [/protocol|version/i, 'upgrade the older one, by one release at a time'], [/certificate|x509|tls/i, 'see that gossip_cert is signed by gossip_ca, and valid'],
  [/name/i, 'give it another node_name, or wait until the old process is gone'], [/decrypt|key/i, 'give both a common gossip key (grapevine keys list)'],
  [/refused|unreachable|timeout|no route|i\/o/i, 'see that it runs, and that its gossip port is open for TCP and UDP'],
]
const remedy = (text) => (remedies.find(([r]) => r.test(text)) || [, 'see docs/operate.md, "A fleet"'])[1]

export const routers = {
  name: 'routers', title: 'Routers',
  open() {
    const title = h('h1', { text: 'Routers' }), stale = h('span', { class: 'muted' })
    const nodes = table({
      key: (n) => n.name,
      columns: [
        { name: 'Router', same: (n) => n.name + n.self, cell: (n) => named(n.name, n.self && 'this one') },
        { name: 'State', same: (n) => n.state, cell: (n) => pill(n.state, levels[n.state]) },
        num('For', (n) => fmt.span(n.since_s)),
        { name: 'Version', cell: (n) => n.version },
        num('Heard after', (n) => (n.self ? '–' : n.connected ? fmt.seconds(n.lag_ms / 1000) : 'not heard')),
        num('Round trip', (n) => (n.self || !n.rtt_ms ? '–' : fmt.seconds(n.rtt_ms / 1000))),
        num('Clock', (n) => (n.self || !n.rtt_ms ? '–' : (n.offset_ms > 0 ? '+' : '') + Math.round(n.offset_ms) + ' ms')),
        num('Received', (n) => (n.self ? '–' : fmt.bytes(n.received_bytes))),
        { name: 'Data port', cell: (n) => n.data },
        { name: 'Trouble', cell: (n) => n.last_error || (n.behind > 100 ? `${n.behind} batches behind` : n.missed ? `took a snapshot for ${n.missed} batches` : '') },
      ],
    })
    const matrix = scroll('Who hears whom', '')
    const matrixPanel = panel('Who hears whom, and how late', 'a row hears a column; milliseconds, those of other routers to a quarter', matrix)
    const raftText = h('p'), raftProblem = alarm()
    const servers = table({
      key: (s) => s.id,
      columns: [
        { name: 'Server', same: (s) => s.name + s.leads, cell: (s) => named(s.name || s.id, s.leads && 'leader') },
        { name: 'Vote', cell: (s) => (s.voter ? 'votes' : 'follows') },
        { name: 'State', same: (s) => String(s.alive), cell: (s) => pill(s.alive ? 'alive' : 'gone', s.alive ? 'ok' : 'bad') },
        num('Log, by the leader', (s) => (s.index ? s.index : '–')),
        { name: 'Address', cell: (s) => s.addr },
      ],
    })
    const refusals = table({
      key: (r) => r.name + r.addr,
      columns: [
        { name: 'Who', cell: (r) => r.name || r.addr }, { name: 'Address', cell: (r) => r.addr }, num('Times', (r) => r.count ?? 1),
        num('Last', (r) => fmt.span(r.age_s) + ' ago'), { name: 'Why', cell: (r) => r.error }, { name: 'Remedy', cell: (r) => remedy(r.error) },
      ],
    })
    const refused = panel('Refused', 'nodes that this fleet did not take, and seeds that did not take this node', scroll('Refused', refusals.el))
    const el = h('div', null, head(title, stale),
      h('section', { class: 'panel' }, scroll('Routers', nodes.el)), matrixPanel,
      panel('Raft group', 'agrees on engines, rules and hot prefixes; never in the way of a request', h('div', { class: 'stack' }, raftText, raftProblem.el, scroll('Raft group', servers.el))), refused)

    function drawMatrix(list, lags) {
      const alive = list.map((n, i) => [n, i]).filter(([n]) => n.state !== 'left')
      matrixPanel.hidden = alive.length < 2 || alive.length > matrixUpTo
      if (matrixPanel.hidden) return
      matrix.replaceChildren(h('table', { class: 'matrix' }, h('caption', { class: 'vh', text: 'Lag in milliseconds: a row hears a column' }),
        h('thead', null, h('tr', null, h('td'), alive.map(([n]) => h('th', { scope: 'col', text: n.name })))),
        h('tbody', null, alive.map(([n, i]) => h('tr', null, h('th', { scope: 'row', text: n.name }), alive.map(([, j]) => {
          const ms = lags[i][j], known = lags[i].some((v) => v !== null)
          return i === j ? h('td', { class: 'self', text: '·' }) : h('td', { class: known ? late(ms) : 'self', text: ms === null ? (known ? 'no' : '?') : String(Math.max(1, Math.round(ms))) })
        }))))))
    }
    return {
      el, every: 3000,
      async refresh() {
        const [a, status, raft] = await Promise.all([api('/nodes'), api('/status'), may('/raft')])
        const alive = a.nodes.filter((n) => n.state === 'alive').length
        say(title, fmt.count(alive, 'router') + ' up')
        say(stale, status.fleet ? `knowledge is ${fmt.seconds(status.fleet.staleness_ms / 1000)} old, ${fmt.number(status.fleet.blind_decisions)} of ${fmt.number(status.picks)} decisions of ${status.node} were made blind` : 'a single node, without gossip')
        nodes.update(a.nodes)
        drawMatrix(a.nodes, a.lags_ms)
        const bad = [...a.refusals, ...a.seeds.filter((s) => s.error).map((s) => ({ ...s, name: s.seed }))]
        refused.hidden = bad.length === 0
        refusals.update(bad)
        raftProblem.set(raft.problem)
        if (raft instanceof Refused) {
          say(raftText, raft.message)
          servers.update([])
          return
        }
        const leader = raft.servers.find((s) => s.id === raft.leader)
        say(raftText, raft.leader ? `${leader?.name || raft.leader} leads ${fmt.count(raft.servers.filter((s) => s.voter).length, 'voter')}. This router's role is ${raft.role}, at version ${raft.version} of the agreed state (term ${raft.term}, ${fmt.number(raft.committed)} log entries).` : 'There is no leader: changes are refused, and routing goes on by the last agreed state.')
        servers.update(raft.servers.map((s) => ({ ...s, leads: s.id === raft.leader })))
      },
    }
  },
}
