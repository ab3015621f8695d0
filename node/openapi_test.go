package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"grapevine.example/node/health"
	"grapevine.example/node/sources"
)

type document map[string]any

func readDocument(t *testing.T) document {
	t.Helper()
	text, err := os.ReadFile("../docs/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var d map[string]any
	if err := yaml.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d document) at(keys ...string) any {
	var v any = map[string]any(d)
	for _, k := range keys {
		m, _ := v.(map[string]any)
		v = m[k]
	}
	return v
}

func (d document) resolve(t *testing.T, v any) map[string]any {
	t.Helper()
	m, _ := v.(map[string]any)
	for ref, ok := m["$ref"].(string); ok; ref, ok = m["$ref"].(string) {
		path, inside := strings.CutPrefix(ref, "#/")
		next, found := d.at(strings.Split(path, "/")...).(map[string]any)
		if !inside || !found {
			t.Fatalf("%s leads nowhere", ref)
		}
		m = next
	}
	return m
}

func (d document) operations(t *testing.T) map[string]map[string]any {
	t.Helper()
	ops := make(map[string]map[string]any)
	for path, item := range d.at("paths").(map[string]any) {
		for method, op := range item.(map[string]any) {
			ops[strings.ToUpper(method)+" "+path] = op.(map[string]any)
		}
	}
	return ops
}

// check validates a decoded JSON value and rejects schema keywords that it does not know.
func (d document) check(t *testing.T, schema any, v any, place string) (wrong []string) {
	t.Helper()
	s := d.resolve(t, schema)
	bad := func(format string, args ...any) {
		wrong = append(wrong, place+": "+fmt.Sprintf(format, args...))
	}
	for word := range s {
		switch word {
		case "type", "required", "properties", "additionalProperties", "items", "enum", "minItems", "minimum", "exclusiveMinimum", "maxLength", "description", "format":
		default:
			t.Fatalf("%s: the test does not know %q", place, word)
		}
	}
	number, isNumber := v.(float64)
	switch s["type"] {
	case "object":
		return d.checkObject(t, s, v, place)
	case "array":
		list, ok := v.([]any)
		if least, _ := s["minItems"].(int); !ok || len(list) < least {
			bad("%v is no list of %d or more", v, least)
		}
		for i, e := range list {
			wrong = append(wrong, d.check(t, s["items"], e, fmt.Sprintf("%s[%d]", place, i))...)
		}
	case "string":
		text, ok := v.(string)
		if !ok {
			bad("%v is no string", v)
		}
		if enum, limited := s["enum"].([]any); limited && !slices.Contains(enum, any(text)) {
			bad("%q is none of %v", text, enum)
		}
		if most, limited := s["maxLength"].(int); limited && len(text) > most {
			bad("longer than %d", most)
		}
	case "boolean":
		if _, ok := v.(bool); !ok {
			bad("%v is no boolean", v)
		}
	case "integer", "number":
		if !isNumber || s["type"] == "integer" && number != float64(int64(number)) {
			bad("%v is no %v", v, s["type"])
		}
		if least, ok := s["minimum"].(int); ok && number < float64(least) {
			bad("%v is below %d", number, least)
		}
		if bound, ok := s["exclusiveMinimum"].(int); ok && number <= float64(bound) {
			bad("%v is not above %d", number, bound)
		}
	default:
		t.Fatalf("%s: the test does not know the type %v", place, s["type"])
	}
	return wrong
}

func (d document) checkObject(t *testing.T, s map[string]any, v any, place string) (wrong []string) {
	t.Helper()
	m, ok := v.(map[string]any)
	if !ok {
		return []string{fmt.Sprintf("%s: %v is no object", place, v)}
	}
	required, _ := s["required"].([]any)
	for _, name := range required {
		if _, ok := m[name.(string)]; !ok {
			wrong = append(wrong, fmt.Sprintf("%s: %s is missing", place, name))
		}
	}
	properties, _ := s["properties"].(map[string]any)
	for name, value := range m {
		property, known := properties[name]
		switch {
		case known:
			wrong = append(wrong, d.check(t, property, value, place+"."+name)...)
		case s["additionalProperties"] == false:
			wrong = append(wrong, fmt.Sprintf("%s: %s is unknown", place, name))
		}
	}
	return wrong
}

func (d document) parameters(t *testing.T, op map[string]any) (names []string) {
	t.Helper()
	list, _ := op["parameters"].([]any)
	for _, v := range list {
		if p := d.resolve(t, v); p["in"] == "query" {
			names = append(names, p["name"].(string))
		}
	}
	return names
}

var operating = []string{" /backends", " /rules", " /raft", " /prefixes"}

func TestOpenAPINamesEveryPath(t *testing.T) {
	n, err := New(testConfig())
	if err != nil {
		t.Fatal(err)
	}
	var there []string
	for pattern := range n.adminServer().Routes() {
		there = append(there, strings.ReplaceAll(pattern, "...}", "}"))
	}
	slices.Sort(there)
	if documented := slices.Sorted(maps.Keys(readDocument(t).operations(t))); !slices.Equal(there, documented) {
		t.Errorf("there is\n%v\ndocumented is\n%v", there, documented)
	}
}

// TestOpenAPIHolds: each operation accepts its example and rejects undocumented fields.
func TestOpenAPIHolds(t *testing.T) {
	t.Parallel()
	d := readDocument(t)
	engine := newFakeEngine(t, "m")
	n := startNode(t, testConfig(engine.URL))
	eventually(t, "an agreement", func() bool { return n.backends.Roster().Version > 0 })
	name := n.cfg.Backends[0].Name
	ops := d.operations(t)
	call := func(op, query string, body any) (int, string) {
		t.Helper()
		method, path, _ := strings.Cut(op, " ")
		var text []byte
		if body != nil {
			var err error
			if text, err = json.Marshal(body); err != nil {
				t.Fatal(err)
			}
		}
		req, err := http.NewRequest(method, "http://"+n.AdminAddr()+strings.ReplaceAll(path, "{name}", url.PathEscape(name))+query, bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(answer)
	}
	for _, op := range slices.Sorted(maps.Keys(ops)) {
		body := d.resolve(t, ops[op]["requestBody"])
		content, _ := body["content"].(map[string]any)
		media, _ := content["application/json"].(map[string]any)
		var example any
		if media != nil {
			example = generic(t, media["example"])
			if wrong := d.check(t, media["schema"], example, op+" example"); len(wrong) > 0 {
				t.Errorf("%s: the example is not what the schema says: %v", op, wrong)
			}
			if d.resolve(t, media["schema"])["additionalProperties"] == false {
				odd := maps.Clone(example.(map[string]any))
				odd["surprise"] = 1
				if status, text := call(op, "", odd); status != http.StatusBadRequest || !strings.Contains(text, `"place":"surprise"`) {
					t.Errorf("%s with an unknown field: %d %s", op, status, text)
				}
			}
		}
		query := ""
		switch op {
		case "POST /backends":
			query = "?force=true"
		case "DELETE /backends":
			query = "?name=gpu8"
		}
		if named := d.parameters(t, ops[op]); slices.ContainsFunc(operating, func(path string) bool { return strings.Contains(op, path) }) {
			if status, text := call(op, "?surprise=1", example); status != http.StatusBadRequest || !strings.Contains(text, `"place":"surprise"`) {
				t.Errorf("%s with an unknown parameter: %d %s", op, status, text)
			}
			for _, p := range named {
				if status, text := call(op, "?"+p+"=true&surprise=1", example); status != http.StatusBadRequest || !strings.Contains(text, `"place":"surprise"`) {
					t.Errorf("%s with %s, which is documented: %d %s", op, p, status, text)
				}
			}
		}
		status, text := call(op, query, example)
		if status == http.StatusBadRequest || status == http.StatusUnsupportedMediaType {
			t.Errorf("%s does not take its example: %d %s", op, status, text)
		}
		d.checkAnswer(t, op, ops[op], status, text)
	}
	for op, tc := range map[string]struct {
		query string
		body  any
	}{
		"POST /backends":         {"", map[string]any{"backends": []any{map[string]any{"url": "nonsense"}}}},
		"PATCH /backends":        {"", map[string]any{"names": []string{"nobody"}, "action": "drain"}},
		"DELETE /backends":       {"", nil},
		"PUT /rules":             {"", map[string]any{"text": "rules:\n  - {strategy: odd}\n  - {}\n"}},
		"POST /raft/transfer":    {"", map[string]any{"to": "nobody"}},
		"PATCH /backends/{name}": {"", map[string]any{"if_version": 999_999, "weight": 2}},
	} {
		status, text := call(op, tc.query, tc.body)
		if status < 400 {
			t.Errorf("%s took %v: %s", op, tc.body, text)
		}
		d.checkAnswer(t, op, ops[op], status, text)
	}
}

func TestOpenAPINamesReservedReasons(t *testing.T) {
	t.Parallel()
	patch := readDocument(t).at("paths", "/backends", "patch", "requestBody", "content", "application/json", "schema", "properties", "reason", "description")
	for _, prefix := range []string{health.Prefix, sources.Prefix} {
		if !strings.Contains(patch.(string), "`"+prefix+"`") {
			t.Errorf("%q is not in %q", prefix, patch)
		}
	}
}

func (d document) checkAnswer(t *testing.T, op string, spec map[string]any, status int, text string) {
	t.Helper()
	responses := spec["responses"].(map[string]any)
	response, ok := responses[fmt.Sprint(status)]
	if !ok {
		if response, ok = responses["default"]; ok {
			_, ok = d.statuses(t)[fmt.Sprint(status)]
		}
	}
	if !ok {
		t.Errorf("%s answers %d, which is not documented: %s", op, status, text)
		return
	}
	media, ok := d.resolve(t, response)["content"].(map[string]any)["application/json"].(map[string]any)
	if !ok {
		return
	}
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Errorf("%s: %d %s: %v", op, status, text, err)
		return
	}
	if wrong := d.check(t, media["schema"], v, op); len(wrong) > 0 {
		t.Errorf("%s answers %d %s, which is not what is documented: %v", op, status, text, wrong)
	}
}

func generic(t *testing.T, v any) (out any) {
	t.Helper()
	text, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestOpenAPISaysWhoMayAsk(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("a-token-for-operators"), 0o600); err != nil {
		t.Fatal(err)
	}
	without, err := New(testConfig())
	if err != nil {
		t.Fatal(err)
	}
	cfg := testConfig()
	cfg.AdminTokenFile = file
	with, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(n *Node, op, query string) int {
		method, path, _ := strings.Cut(op, " ")
		r := httptest.NewRequest(method, strings.ReplaceAll(path, "{name}", "gpu8")+query, strings.NewReader("{}"))
		r.RemoteAddr, r.Host = "192.0.2.7:5", "192.0.2.1:8081"
		w := httptest.NewRecorder()
		n.adminServer().Guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })).ServeHTTP(w, r)
		return w.Code
	}
	want := map[any]int{"everybody": http.StatusNoContent, "own-machine": http.StatusForbidden}
	d := readDocument(t)
	for op, spec := range d.operations(t) {
		who, known := want[spec["x-without-token"]]
		if status := ask(without, op, ""); !known || status != who {
			t.Errorf("%s from elsewhere, without a token: %d; documented is %v", op, status, spec["x-without-token"])
		}
		needed := http.StatusUnauthorized
		if security, said := spec["security"].([]any); said && len(security) == 0 {
			needed = http.StatusNoContent
		}
		if status := ask(with, op, ""); status != needed {
			t.Errorf("%s without the token that is needed: %d, want %d", op, status, needed)
		}
		list, _ := spec["parameters"].([]any)
		for _, v := range list {
			p := d.resolve(t, v)
			who := who
			if said, ok := p["x-without-token"]; ok {
				who = want[said]
			}
			if status := ask(without, op, fmt.Sprintf("?%v=1", p["name"])); p["in"] == "query" && status != who {
				t.Errorf("%s with %v from elsewhere: %d, want %d", op, p["name"], status, who)
			}
			if status := ask(with, op, fmt.Sprintf("?%v=1", p["name"])); status != needed {
				t.Errorf("%s with %v without the token that is needed: %d, want %d", op, p["name"], status, needed)
			}
		}
	}
}

func (d document) statuses(t *testing.T) map[string]any {
	t.Helper()
	m, ok := d.at("components", "responses", "Refusal", "x-statuses").(map[string]any)
	if !ok {
		t.Fatal("the statuses of refusals are not documented")
	}
	return m
}

var refusing = regexp.MustCompile(`(?:Status: ?|\{[\w.]+, |Refuse\(|http\.Error\(w, .*, )http\.Status(\w+)`)

func TestOpenAPINamesEveryStatus(t *testing.T) {
	t.Parallel()
	codes := make(map[string]string)
	for code := 400; code < 600; code++ {
		codes[strings.ReplaceAll(http.StatusText(code), " ", "")] = fmt.Sprint(code)
	}
	files, err := filepath.Glob("admin/*.go")
	if err != nil {
		t.Fatal(err)
	}
	own, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, own...)
	used := map[string]any{fmt.Sprint(http.StatusMethodNotAllowed): nil} // 405 comes from the mux
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, found := range refusing.FindAllStringSubmatch(string(text), -1) {
			code, known := codes[found[1]]
			if !known {
				t.Errorf("%s: http.Status%s is no refusal's", file, found[1])
			}
			used[code] = nil
		}
	}
	if got, want := slices.Sorted(maps.Keys(used)), slices.Sorted(maps.Keys(readDocument(t).statuses(t))); !slices.Equal(got, want) {
		t.Errorf("refusals have the statuses %v, documented are %v", got, want)
	}
}
