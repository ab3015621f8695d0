// Package member maintains the fleet's membership and opens authenticated streams between nodes. It
// runs memberlist and adds TLS streams on the same port, checks of seeds, healing of partitions,
// and key rotation. See DESIGN.md.
package member
