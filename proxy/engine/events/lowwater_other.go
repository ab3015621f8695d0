//go:build !linux

package events

import "net"

func lowWater(net.Conn, int) {}
