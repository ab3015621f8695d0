// Package member knows who is in the fleet, and makes authenticated streams
// between its nodes.
//
// Membership, failure detection and the metadata of nodes are memberlist's. It
// runs on a transport of this package, so that one port carries its packets
// and streams as well as this package's own TLS streams. What memberlist leaves
// to others is here: finding seeds and asking them who they are before joining,
// so that a misconfigured node is told what is wrong; going back to members
// that were lost, because memberlist never heals a partition; changing the
// fleet's key while it runs.
//
// It does not know what nodes say to each other on their streams.
package member
