package prefixtree

// Outbox collects news until it is drained. Safe for concurrent use.
type Outbox struct{}

// OutboxStats are an outbox' figures: totals since NewOutbox, but for Pending.
type OutboxStats struct {
	Pending     int    // records waiting
	Sent        uint64 // records drained
	LostAdds    uint64 // dropped at the bound
	LostTouches uint64
	LostDrops   uint64
	Unnamed     uint64 // of backends that have no name any more
}

// NewOutbox returns an outbox for at most limit records.
func NewOutbox(limit int) *Outbox { return new(Outbox) }

// Add takes news; the slice stays the caller's.
func (o *Outbox) Add(news []Fact) {}

// Drain appends at most limit bytes of encoded news to dst and returns it with the number of records taken.
func (o *Outbox) Drain(dst []byte, limit int, names Names) (payload []byte, records int) {
	return dst, 0
}

// Stats returns the current figures.
func (o *Outbox) Stats() OutboxStats { return OutboxStats{} }
