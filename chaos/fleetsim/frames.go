package fleetsim

import (
	"encoding/binary"

	"grapevine/gossip/wire"
)

// appendFrame appends a frame around a body, as package wire does.
func appendFrame(dst []byte, k wire.Kind, body []byte) []byte {
	dst = append(dst, byte(k))
	dst = binary.AppendUvarint(dst, uint64(len(body)))
	return append(dst, body...)
}

func appendLoad(dst []byte, time int64, full bool, loads []wire.Load) []byte {
	flags := byte(0)
	if full {
		flags = 1
	}
	body := binary.AppendUvarint([]byte{flags}, uint64(time))
	body = binary.AppendUvarint(body, uint64(len(loads)))
	for i := range loads {
		body = binary.LittleEndian.AppendUint32(body, loads[i].Backend)
		body = binary.AppendUvarint(body, uint64(loads[i].PrefillTokens))
		body = binary.AppendUvarint(body, uint64(loads[i].Active))
	}
	return appendFrame(dst, wire.KindLoad, body)
}

func appendState(dst []byte, time int64, state []byte) []byte {
	body := binary.AppendUvarint(nil, uint64(time))
	body = binary.AppendUvarint(body, uint64(len(state)))
	return appendFrame(dst, wire.KindState, append(body, state...))
}
