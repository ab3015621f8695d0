package wire

// Load is the work one node has outstanding on one backend.
type Load struct {
	Backend       uint32 // key of the backend's name
	PrefillTokens uint32 // prompt tokens not yet computed
	Active        uint32 // requests
}
