package node

import (
	"testing"
	"time"
)

func TestChangeBy(t *testing.T) {
	began := time.Now()
	for _, test := range []struct{ looked, want time.Duration }{
		{0, changeWithin},
		{300 * time.Millisecond, changeWithin},
		{changeWithin - changeLeast, changeWithin},
		{changeWithin, changeWithin + changeLeast},
		{reachTimeout, reachTimeout + changeLeast},
	} {
		if got := changeBy(began, began.Add(test.looked)).Sub(began); got != test.want {
			t.Errorf("after a look of %v: %v, want %v", test.looked, got, test.want)
		}
	}
}
