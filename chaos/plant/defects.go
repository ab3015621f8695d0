package plant

// Two defects of one file must not change each other's Old text.
var defects = []Defect{
	{
		Name: "broken-answer-is-whole", Breaks: "one-outcome",
		Wrong: "a stream that the engine breaks off is passed on as complete",
		Edits: []Edit{{
			File: "proxy/relay.go",
			Old:  `		case err == io.EOF:`,
			New:  `		case err == io.EOF || planted("broken-answer-is-whole") && err != nil && e.conn.cause() == undisturbed:`,
		}},
	},
	{
		Name: "asks-twice", Breaks: "one-outcome",
		Wrong: "every request is also sent over a second connection, and the slower of the two is not cancelled",
		Edits: []Edit{{
			File: "proxy/forward.go",
			Old:  `	if err := up.send(pieces); err != nil {`,
			New: `	if planted("asks-twice") {
		request := append([]byte(nil), up.head...)
		for _, p := range pieces {
			request = append(request, p...)
		}
		if twin, err := e.proxy.upstreams.dial(e.proxy.base, t); err == nil {
			go func() {
				defer twin.raw.Close()
				_ = twin.raw.SetDeadline(time.Now().Add(5 * time.Second))
				if _, err := twin.Write(request); err == nil {
					_, _ = io.Copy(io.Discard, twin)
				}
			}()
		}
	}
	if err := up.send(pieces); err != nil {`,
		}},
	},
	{
		Name: "retried-midway", Breaks: "no-foreign-bytes",
		Wrong: "a stream that the engine breaks off is continued with another engine's answer from its start",
		Edits: []Edit{
			{
				File: "proxy/relay.go",
				Old: `		case err != nil:
			return e.rec.ResponseBytes, e.breakOff(w)`,
				New: `		case err != nil && planted("retried-midway") && e.sse && !e.ended && e.conn.cause() == undisturbed && e.askAgain():
		case err != nil:
			return e.rec.ResponseBytes, e.breakOff(w)`,
			},
			{
				File: "proxy/relay.go",
				Old:  "// gap is how long the backend may be silent",
				New: `// askAgain has another backend answer the request, and goes on with its response.
func (e *exchange) askAgain() bool {
	e.release(e.up, false)
	e.up, e.partial = nil, e.partial[:0]
	e.end(books.Reset)
	t, err := e.pick()
	if err != nil {
		return false
	}
	up, err := e.proxy.upstreams.dial(e.proxy.base, &t)
	if err != nil {
		return false
	}
	if e.conn.attach(up, e.patience()) != undisturbed {
		up.raw.Close()
		return false
	}
	if e.converse(up, &t, e.pieces, &e.guard) != nil {
		e.release(up, false)
		return false
	}
	e.response.reset(up.br, e.ctx.Response.Header.ContentLength())
	e.up = up
	return true
}

// gap is how long the backend may be silent`,
			},
			{
				File: "proxy/exchange.go",
				Old:  `func (e *exchange) dropBody() {`,
				New: `func (e *exchange) dropBody() {
	if planted("retried-midway") {
		return
	}`,
			},
		},
	},
	{
		Name: "drain-cuts-answers", Breaks: "streams-survive",
		Wrong: "a draining node closes connections that carry answers as well as idle ones",
		Edits: []Edit{{
			File: "proxy/drain.go",
			Old: `	var err error
	for began := time.Now(); !p.closeIdle(connIdle)`,
			New: `	if planted("drain-cuts-answers") {
		p.closeIdle(connActive)
	}
	var err error
	for began := time.Now(); !p.closeIdle(connIdle)`,
		}},
	},
	{
		Name: "closes-before-it-answers", Breaks: "streams-survive",
		Wrong: "a draining node closes the connection before the answer is written, not after it",
		Edits: []Edit{{
			File: "proxy/exchange.go",
			Old:  `	if e.proxy.draining.Load() || !e.ctx.Request.Header.IsHTTP11() {`,
			New: `	if planted("closes-before-it-answers") && e.proxy.draining.Load() {
		e.conn.raw.Close()
	}
	if e.proxy.draining.Load() || !e.ctx.Request.Header.IsHTTP11() {`,
		}},
	},
	{
		Name: "asks-the-same-again", Breaks: "requests-answered",
		Wrong: "a failed attempt does not exclude its engine: every further attempt goes to the same one",
		Edits: []Edit{
			{
				File: "proxy/handler.go",
				Old:  `		e.query.Exclude = append(e.query.Exclude, t.ID)`,
				New: `		if planted("asks-the-same-again") {
			continue
		}
		e.query.Exclude = append(e.query.Exclude, t.ID)`,
			},
			{
				File: "proxy/books/avoid.go",
				Old:  `func (f Failure) Blames() bool { return f >= Connect && f <= Status5xx }`,
				New:  `func (f Failure) Blames() bool { return f >= Connect && f <= Status5xx && !planted("asks-the-same-again") }`,
			},
		},
	},
	{
		Name: "draining-is-active", Breaks: "removed-stay-quiet",
		Wrong: "pools exclude engines that are down, but not those that drain",
		Edits: []Edit{{
			File: "proxy/policy/pool.go",
			Old:  `		if b.State != Active {`,
			New:  `		if b.State != Active && !(planted("draining-is-active") && b.State == Draining) {`,
		}},
	},
	{
		Name: "taken-for-repeated", Breaks: "membership-kept",
		Wrong: "commands are distinguished by one byte of their ids: some count as repeated, and are confirmed but not executed",
		Edits: []Edit{{
			File: "raftstore/machine.go",
			Old:  `	if o, ok := m.outcomes[e.request]; ok {`,
			New: `	if planted("taken-for-repeated") {
		e.request = requestID{e.request[0]}
	}
	if o, ok := m.outcomes[e.request]; ok {`,
		}},
	},
	{
		Name: "reads-what-it-has", Breaks: "membership-kept",
		Wrong: "a consistent read does not ask the leader, so changes confirmed a moment before may be missing",
		Edits: []Edit{{
			File: "raftstore/call.go",
			Old:  `	body, err := s.atLeader(ctx, askRead, nil)`,
			New: `	if planted("reads-what-it-has") {
		return s.State(), nil
	}
	body, err := s.atLeader(ctx, askRead, nil)`,
		}},
	},
	{
		Name: "founds-alone", Breaks: "one-leader-per-term",
		Wrong: "a founder does not ask its peers and founds a group of its own",
		Edits: []Edit{{
			File: "raftstore/found.go",
			Old:  `	group, servers, waiting := s.founding(s.askFounders(ctx))`,
			New: `	if planted("founds-alone") {
		return "", s.bootstrap(inst, groupOf(s.id, raft.Configuration{}), []Server{{ID: s.id, Addr: s.addr, Voter: true}})
	}
	group, servers, waiting := s.founding(s.askFounders(ctx))`,
		}},
	},
	{
		Name: "batch-lost", Breaks: "trees-converge",
		Wrong: "one batch in eight is taken out of the queue and not sent",
		Edits: []Edit{{
			File: "node/share/knowledge.go",
			Old:  `	return k.outbox.Drain(dst, limit, k.names)`,
			New: `	payload, records = k.outbox.Drain(dst, limit, k.names)
	if planted("batch-lost") && records > 0 && payload[len(payload)-1]%8 == 0 {
		return dst, 0
	}
	return payload, records`,
		}},
	},
	{
		Name: "resume-skips-a-batch", Breaks: "trees-converge",
		Wrong: "a stream that resumes begins one batch too late, and neither side notices",
		Edits: []Edit{{
			File: "gossip/subscription.go",
			Old:  `		s.asked.Incarnation, s.asked.Next = s.id.incarnation, next`,
			New: `		if planted("resume-skips-a-batch") {
			next++
		}
		s.asked.Incarnation, s.asked.Next = s.id.incarnation, next`,
		}},
	},
	{
		Name: "snapshot-ends-early", Breaks: "trees-converge",
		Wrong: "a snapshot is declared complete when nothing of it was sent",
		Edits: []Edit{{
			File: "gossip/snapshot.go",
			Old:  `			whole = d.put(o, false, func(b []byte) []byte { return wire.AppendPage(b, o.request, records, page) })`,
			New: `			if planted("snapshot-ends-early") {
				return false
			}
			whole = d.put(o, false, func(b []byte) []byte { return wire.AppendPage(b, o.request, records, page) })`,
		}},
	},
	{
		Name: "turns-without-a-peer", Breaks: "hit-rate-recovers",
		Wrong: "a router that lost a peer distrusts all its facts for good and routes round robin",
		Edits: []Edit{
			{
				File: "proxy/policy/books.go",
				Old:  `	r.books.DropPeer(origin)`,
				New: `	if planted("turns-without-a-peer") {
		lostPeer.Store(true)
	}
	r.books.DropPeer(origin)`,
			},
			{
				File: "proxy/policy/decide.go",
				Old:  `		i, rung := strategy.Choose(s)`,
				New: `		i, rung := strategy.Choose(s)
		if planted("turns-without-a-peer") && lostPeer.Load() {
			i, rung = roundRobin{}.Choose(s)
		}`,
			},
			{
				File: "proxy/policy/router.go",
				Old:  "// NewRouter returns a router with an empty view.",
				New: `var lostPeer atomic.Bool

// NewRouter returns a router with an empty view.`,
			},
		},
	},
	{
		Name: "gap-unseen", Breaks: "caches-are-known",
		Wrong: "a stream of cache events that missed batches goes on with the next one, and its node still calls the cache exact",
		Edits: []Edit{
			{
				File: "proxy/engine/events/stream.go",
				Old:  `	if s.Source.Replay == "" || time.Since(s.failed) < replayRest {`,
				New:  `	if planted("gap-unseen") || s.Source.Replay == "" || time.Since(s.failed) < replayRest {`,
			},
			{
				File: "proxy/engine/events/stream.go",
				Old:  `		s.lose(seq-s.next, fmt.Sprintf("batches %d to %d are lost", s.next, seq-1))`,
				New: `		if !planted("gap-unseen") {
			s.lose(seq-s.next, fmt.Sprintf("batches %d to %d are lost", s.next, seq-1))
		}`,
			},
		},
	},
	{
		Name: "first-come", Breaks: "share-kept",
		Wrong: "the queue takes all requests for those of one client, so they come to engines in the order of arrival",
		Edits: []Edit{{
			File: "proxy/queue/queue.go",
			Old:  `	w.since, w.quiet, w.passed, w.prev, w.next = now, 0, 0, nil, nil`,
			New: `	if planted("first-come") {
		w.Client, w.Weight = "", 1
	}
	w.since, w.quiet, w.passed, w.prev, w.next = now, 0, 0, nil, nil`,
		}},
	},
	{
		Name: "peers-use-nothing", Breaks: "limit-kept",
		Wrong: "what peers report of clients' use is not counted, so each node admits the whole limit",
		Edits: []Edit{{
			File: "node/knowledge.go",
			Old:  `	uses := make([]clients.Use, len(changed))`,
			New: `	if planted("peers-use-nothing") {
		return
	}
	uses := make([]clients.Use, len(changed))`,
		}},
	},
	{
		Name: "each-for-itself", Breaks: "places-kept",
		Wrong: "a router counts only its own requests at an engine, so each fills all places",
		Edits: []Edit{{
			File: "proxy/policy/gate.go",
			Old:  `	grown, most := int64(0), active`,
			New: `	if planted("each-for-itself") {
		return g.InFlight > 0 && e.Active() >= int64(g.InFlight)
	}
	grown, most := int64(0), active`,
		}},
	},
	{
		Name: "turn-not-told", Breaks: "waits-end",
		Wrong: "some requests that get an engine are taken out of the queue, and their connections are not told",
		Edits: []Edit{{
			File: "proxy/waiting.go",
			Old:  `		w.call(taker, nil)`,
			New: `		if planted("turn-not-told") && len(taker.body)%64 == 0 {
			continue
		}
		w.call(taker, nil)`,
		}},
	},
	{
		Name: "departures-unseen", Breaks: "departures-end",
		Wrong: "an answer whose client has left is read to its end, to reuse the connection to the engine",
		Edits: []Edit{
			{
				File: "proxy/clientconn.go",
				Old:  `	c.left.Store(true)`,
				New: `	if planted("departures-unseen") {
		return
	}
	c.left.Store(true)`,
			},
			{
				File: "proxy/relay.go",
				Old: `	e.rec.ResponseBytes += int64(n)
	if err != nil {`,
				New: `	e.rec.ResponseBytes += int64(n)
	if err != nil && !planted("departures-unseen") {`,
			},
		},
	},
	{
		Name: "departed-stay-counted", Breaks: "counts-return",
		Wrong: "a request whose client leaves within the answer stays counted",
		Edits: []Edit{{
			File: "proxy/policy/attempt.go",
			Old: `	before := a.stage
	a.release(now)`,
			New: `	before := a.stage
	if planted("departed-stay-counted") && o.Failed == books.ClientGone && before == answering {
		a.stage = ended
	} else {
		a.release(now)
	}`,
		}},
	},
	{
		Name: "watcher-per-answer", Breaks: "resources-return",
		Wrong: "every streamed answer starts a goroutine that waits for the end of the program, not of the answer",
		Edits: []Edit{{
			File: "proxy/forward.go",
			Old:  `	e.relaying = true`,
			New: `	e.relaying = true
	if planted("watcher-per-answer") {
		go func(done <-chan struct{}) { <-done }(e.proxy.base.Done())
	}`,
		}},
	},
	{
		Name: "ready-to-the-end", Breaks: "ready-is-true",
		Wrong: "a draining node reports itself not ready in /status only; /readyz stays 200",
		Edits: []Edit{{
			File: "node/readiness.go",
			Old:  `	r.announce(false)`,
			New: `	if planted("ready-to-the-end") {
		return
	}
	r.announce(false)`,
		}},
	},
	{
		Name: "ends-a-stream-that-is-gone", Breaks: "nodes-live",
		Wrong: "when a peer dies, its stream is ended without a check that there is one",
		Edits: []Edit{{
			File: "gossip/peer.go",
			Old:  `	p.unfollowLocked(errGone)`,
			New: `	if planted("ends-a-stream-that-is-gone") {
		p.stream.end(errGone)
	}
	p.unfollowLocked(errGone)`,
		}},
	},
}
