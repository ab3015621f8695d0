package gossip

import (
	"testing"
	"time"
)

func TestClockThatIsSetIsFollowedAtOnce(t *testing.T) {
	var c clockFilter
	ms := int64(time.Millisecond)
	trip := func(at, there, back, ahead int64) {
		c.add(at*ms, (at+there+ahead)*ms, (at+there+ahead)*ms, (at+there+back)*ms)
	}
	for i := range int64(clockSamples) {
		trip(i*500, 1, 1, 0)
	}
	trip(9000, 4000, 1, 0)
	trip(9500, 1, 4000, 0)
	if got, _ := c.best(); got.offset != 0 || c.n != clockSamples+2 {
		t.Errorf("offset %v after %d samples", got.offset, c.n)
	}
	for _, ahead := range []int64{3_600_000, 0, -5000, 600_000} {
		trip(20_000, 2, 3, ahead)
		got, _ := c.best()
		if want := time.Duration(-ahead) * time.Millisecond; max(got.offset-want, want-got.offset) > 3*time.Millisecond {
			t.Errorf("offset %v, want about %v", got.offset, want)
		}
	}
}

// Otherwise nodes would give one fact different times.
func TestShiftIsForClocksThatAreApart(t *testing.T) {
	ms := time.Millisecond
	for _, c := range []struct{ used, offset, rtt, want time.Duration }{
		{0, 499 * ms, 0, 0},
		{0, 500 * ms, 0, 500 * ms},
		{0, -700 * ms, 100 * ms, -700 * ms},
		{0, 1500 * ms, 3000 * ms, 0}, // three seconds there, none back
		{0, 2100 * ms, 3000 * ms, 2100 * ms},
		{600 * ms, 200 * ms, 0, 600 * ms},
		{600 * ms, 0, 100 * ms, 0},
		{600 * ms, 0, 300 * ms, 600 * ms},
	} {
		if got := steady(c.used, clockSample{rtt: c.rtt, offset: c.offset}); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
