package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is a size, written with an optional unit: KiB, MiB, GiB, KB, MB or GB.
type Bytes int64

var byteUnits = []struct {
	suffix string
	size   int64
}{
	// Longest suffix first: "KiB" ends in "B" too.
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30},
	{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1},
}

func (b *Bytes) UnmarshalText(text []byte) error {
	s := strings.TrimSpace(string(text))
	unit := int64(1)
	for _, u := range byteUnits {
		if len(s) > len(u.suffix) && strings.EqualFold(s[len(s)-len(u.suffix):], u.suffix) {
			s, unit = strings.TrimSpace(s[:len(s)-len(u.suffix)]), u.size
			break
		}
	}
	v, err := strconv.ParseFloat(s, 64)
	size := v * float64(unit)
	if err != nil || math.IsNaN(v) || size < 0 || size >= math.MaxInt64 || size != math.Trunc(size) {
		return fmt.Errorf("%q is not a size in bytes: write 65536, 64KiB or 1GiB", text)
	}
	*b = Bytes(size)
	return nil
}

func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// String uses the largest binary unit that divides b.
func (b Bytes) String() string {
	for _, u := range []struct {
		suffix string
		size   Bytes
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if b != 0 && b%u.size == 0 {
			return strconv.FormatInt(int64(b/u.size), 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(b), 10)
}
