package queue

import (
	"cmp"
	"slices"

	"grapevine.example/proxy/clients"
)

// band is the requests of one priority in a lane, in start-time fair order of their clients: the next
// request is that of the client which has received the least work per weight. A client that returns
// begins where the others are, so it is neither paid nor charged for its absence.
type band struct {
	flows map[string]*flow // those that wait, and others that are ahead
	order []*flow          // those that wait, by tag
	tag   float64          // the least tag when a request was last taken
	owed  float64          // work that higher priorities received while this one waited
	usage
	weight float64 // of the clients in order
}

// flow is one client's requests in a band, in order of arrival.
type flow struct {
	client string
	hash   uint32
	weight float64
	part   float64 // of the client's work that waits in the fleet: here; 1 without other routers
	whole  bool    // the last grant that limited this router has room for all that waits of the client
	tag    float64 // work received, in tokens per weight, counted from the others' tags
	start  float64 // the tag when it began to wait: what it had paid before is forgiven, or counted in it
	usage
	first, last *Waiter
	returned    *Waiter // the last one that Returns; nil without any
	lane        uint64
	share       float64 // of the places, per weight; see Queue.share
	rank        int     // in the heap of shares
}

// keptFlows bounds the clients that are remembered without a waiting request.
const keptFlows = 1024

func byTag(f *flow, tag float64) int { return cmp.Compare(f.tag, tag) }

func (b *band) isOwed() bool { return b.owed > 0 && b.owed >= b.order[0].first.cost() }

// least is where a client that comes begins.
func (b *band) least() float64 {
	if len(b.order) > 0 {
		return b.order[0].tag
	}
	return b.tag
}

func (b *band) push(w *Waiter) {
	f := b.flows[w.Client]
	if f == nil {
		if b.flows == nil {
			b.flows = make(map[string]*flow)
		}
		b.forget()
		f = &flow{client: w.Client, hash: clients.NameKey(w.Client), lane: w.Lane, part: 1, tag: b.least()}
		b.flows[w.Client] = f
	}
	if f.first != nil {
		b.weight += w.Weight - f.weight
	}
	f.weight = w.Weight
	waits := f.first != nil
	if waits && w.Paid > 0 {
		b.charge(f, max(f.tag-w.Paid, f.start)-f.tag)
	} else if !waits {
		f.part, f.whole, f.tag = 1, false, max(f.tag-w.Paid, b.least())
		f.start = f.tag
		b.insert(f)
	}
	w.Paid = 0
	f.link(w)
	f.add(w, 1)
	b.add(w, 1)
}

// link puts a request behind the client's others, or, if it returns, before those that do not.
func (f *flow) link(w *Waiter) {
	w.flow, w.prev = f, f.last
	if w.Returns {
		w.prev, f.returned = f.returned, w
	}
	if w.prev != nil {
		w.next, w.prev.next = w.prev.next, w
	} else {
		w.next, f.first = f.first, w
	}
	if w.next != nil {
		w.next.prev = w
	} else {
		f.last = w
	}
}

// forget drops the clients that are not ahead, or all that do not wait if they are too many.
func (b *band) forget() {
	if len(b.flows) < keptFlows+2*len(b.order) {
		return
	}
	for name, f := range b.flows {
		if f.first == nil && f.tag <= b.least() {
			delete(b.flows, name)
		}
	}
	for name, f := range b.flows {
		if len(b.flows) < keptFlows+len(b.order) {
			return
		}
		if f.first == nil {
			delete(b.flows, name)
		}
	}
}

// insert places a flow behind those of equal tag.
func (b *band) insert(f *flow) {
	at, _ := slices.BinarySearchFunc(b.order, f.tag, func(o *flow, tag float64) int {
		if o.tag <= tag {
			return -1
		}
		return 1
	})
	b.order = slices.Insert(b.order, at, f)
	b.weight += f.weight
}

func (b *band) takeOut(f *flow) {
	at, _ := slices.BinarySearchFunc(b.order, f.tag, byTag)
	for b.order[at] != f {
		at++
	}
	b.order = slices.Delete(b.order, at, at+1)
	if b.weight -= f.weight; len(b.order) == 0 {
		b.weight = 0 // no rounding errors are left
	}
}

func (b *band) remove(w *Waiter) {
	f := w.flow
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		f.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		f.last = w.prev
	}
	if f.returned == w {
		f.returned = w.prev
	}
	w.flow, w.prev, w.next = nil, nil, nil
	f.add(w, -1)
	b.add(w, -1)
	if f.first != nil {
		return
	}
	if b.takeOut(f); len(b.order) == 0 {
		b.owed, b.tag = 0, max(b.tag, f.tag)
	}
}

// tags is by how much work moves the client's tag. Other routers serve it, too, in proportion to what waits
// there.
func (f *flow) tags(cost float64) float64 { return cost / (f.weight * f.part) }

// charge moves a client's tag for work that it received.
func (b *band) charge(f *flow, by float64) {
	b.tag = max(b.tag, b.order[0].tag)
	b.takeOut(f)
	f.tag += by
	b.insert(f)
}

// window appends the first requests in fair order, at most so many, as if each were served in turn at its expected
// cost: all, or those of clients that are granted all that waits of them. A client that took engines for requests
// farther back would get none for seconds once more of them wait than are granted.
func (b *band) window(dst []*Waiter, most int, all bool) []*Waiter {
	type turn struct {
		tag float64
		w   *Waiter
	}
	var later [2 * Window]turn // of clients of which a request has been looked at, by tag
	from, to := 0, 0
	for at, n := 0, 0; n < most; n++ {
		var t turn
		switch {
		case from < to && (at == len(b.order) || later[from].tag < b.order[at].tag):
			t = later[from]
			from++
		case at < len(b.order):
			t = turn{b.order[at].tag, b.order[at].first}
			at++
		default:
			return dst
		}
		if all || t.w.flow.whole {
			dst = append(dst, t.w)
		}
		if t.w.next == nil {
			continue
		}
		t.tag, t.w = t.tag+t.w.flow.tags(t.w.cost()), t.w.next
		i := to
		for ; i > from && later[i-1].tag > t.tag; i-- {
			later[i] = later[i-1]
		}
		later[i] = t
		to++
	}
	return dst
}

// crowd is a heap of the clients that wait with one priority: first the one with the greatest share of the
// places.
type crowd []*flow

func (c crowd) Len() int { return len(c) }

func (c crowd) Less(i, j int) bool {
	a, b := c[i], c[j]
	return cmp.Or(cmp.Compare(b.share, a.share), cmp.Compare(a.client, b.client), cmp.Compare(a.lane, b.lane)) < 0
}

func (c crowd) Swap(i, j int) {
	c[i], c[j] = c[j], c[i]
	c[i].rank, c[j].rank = i, j
}

func (c *crowd) Push(x any) {
	f := x.(*flow)
	f.rank = len(*c)
	*c = append(*c, f)
}

func (c *crowd) Pop() any {
	old := *c
	f := old[len(old)-1]
	old[len(old)-1] = nil
	*c = old[:len(old)-1]
	return f
}
