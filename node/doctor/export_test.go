package doctor

import "testing"

type Planted = planted

var Plants = plants

func (p *planted) Request(i int) map[string]any       { return p.request(i) }
func (p *planted) Name() string                       { return p.name }
func (p *planted) Check(t *testing.T, report *Report) { p.check(t, report) }
