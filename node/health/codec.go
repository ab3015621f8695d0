package health

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Reports travel as a section of the gossiped state: one byte with the entry size, at least
// entryBytes, then the entries. Readers skip appended fields. Integers are little-endian.
//
//	bytes  field
//	4      key of the backend's name
//	1      bit 0 OK, 1 failing, 2 passive, 3 suspect
//	1      reason
//	4      since, Unix seconds
//	4      start of the engine's process, Unix seconds
const entryBytes = 14

const MaxReports = 4096

var ErrReports = errors.New("malformed reports")

func AppendReports(dst []byte, reports []Report) []byte {
	dst = append(dst, entryBytes)
	for i := range reports[:min(len(reports), MaxReports)] {
		r := &reports[i]
		var flags byte
		for bit, set := range [...]bool{r.OK, r.Failing, r.Passive, r.Suspect} {
			if set {
				flags |= 1 << bit
			}
		}
		dst = binary.LittleEndian.AppendUint32(dst, r.Backend)
		dst = append(dst, flags, byte(r.Reason))
		dst = binary.LittleEndian.AppendUint32(dst, r.Since)
		dst = binary.LittleEndian.AppendUint32(dst, r.Started)
	}
	return dst
}

func ParseReports(dst []Report, section []byte) ([]Report, error) {
	if len(section) == 0 || section[0] < entryBytes || (len(section)-1)%int(section[0]) != 0 {
		return dst, fmt.Errorf("%w: %d bytes", ErrReports, len(section))
	}
	size := int(section[0])
	section = section[1:]
	if n := len(section) / size; n > MaxReports {
		return dst, fmt.Errorf("%w: %d of them", ErrReports, n)
	}
	for ; len(section) > 0; section = section[size:] {
		flags := section[4]
		dst = append(dst, Report{
			Backend: binary.LittleEndian.Uint32(section), Reason: Reason(section[5]),
			OK: flags&1 != 0, Failing: flags&2 != 0, Passive: flags&4 != 0, Suspect: flags&8 != 0,
			Since: binary.LittleEndian.Uint32(section[6:]), Started: binary.LittleEndian.Uint32(section[10:]),
		})
	}
	return dst, nil
}
