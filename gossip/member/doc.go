// Package member maintains the fleet's membership and opens authenticated streams between its
// nodes.
//
// Membership and failure detection are memberlist's, on a transport that shares one port with this
// package's TLS streams. This package adds: finding seeds and checking them before joining, so that
// a misconfigured node learns what is wrong; dialing lost members again, because memberlist never
// heals a partition; changing the fleet's key at run time. See DESIGN.md.
package member
