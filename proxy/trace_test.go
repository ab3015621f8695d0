package proxy

import "testing"

func TestParseTrace(t *testing.T) {
	const id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	for text, want := range map[string]struct{ known, sampled bool }{
		"00-" + id + "-" + parent + "-01":                                 {true, true},
		"00-" + id + "-" + parent + "-00":                                 {true, false},
		"00-" + id + "-" + parent + "-03":                                 {true, true},
		"cc-" + id + "-" + parent + "-01-later":                           {true, true},
		"00-" + id + "-" + parent + "-01-later":                           {},
		"cc-" + id + "-" + parent + "-01later":                            {},
		"ff-" + id + "-" + parent + "-01":                                 {},
		"00-00000000000000000000000000000000-" + parent + "-01":           {},
		"00-" + id + "-0000000000000000-01":                               {},
		"00-0AF7651916CD43DD8448EB211C80319C-" + parent + "-01":           {},
		"00-" + id + "-" + parent:                                         {},
		"":                                                                {},
		"00-" + id + "_" + parent + "-01":                                 {},
		"0x-" + id + "-" + parent + "-01":                                 {},
		"00-" + id + "-" + parent + "-0g":                                 {},
		"00-" + "0af7651916cd43dd8448eb211c80319-" + parent + "-01234567": {},
	} {
		got := parseTrace([]byte(text))
		if known := got != (Trace{}); known != want.known || got.Sampled != want.sampled {
			t.Errorf("%q: %+v", text, got)
		}
		if want.known && (got.ID[0] != 0x0a || got.ID[15] != 0x9c || got.Parent[7] != 0x31) {
			t.Errorf("%q: %x %x", text, got.ID, got.Parent)
		}
	}
}
