// Package member maintains the fleet's membership and opens authenticated streams between nodes. To
// memberlist it adds TLS streams on the same port, checked seeds, healing of partitions, and key
// rotation. See DESIGN.md.
package member
