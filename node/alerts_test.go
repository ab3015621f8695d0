package node

import (
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const rulesDir = "../deploy/prometheus/"

type alert struct {
	Alert, Expr         string
	Labels, Annotations map[string]string
}

// TestAlerts finds metrics and labels that no node exports, and runbooks and tests that do not exist. promtool checks the rest
// (make test-alerts).
func TestAlerts(t *testing.T) {
	var rules struct {
		Groups []struct{ Rules []alert }
	}
	text, err := os.ReadFile(rulesDir + "grapevine.rules.yml")
	if err == nil {
		err = yaml.Unmarshal(text, &rules)
	}
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile(rulesDir + "grapevine.rules_test.yml")
	if err != nil {
		t.Fatal(err)
	}
	anchors, registry := headings(t), readRegistry(t)
	for _, a := range rules.Groups[0].Rules {
		if err := registry.check(query{a.Annotations["summary"], a.Expr}); err != nil {
			t.Errorf("%s: %v", a.Alert, err)
		}
		if runbook := a.Annotations["runbook"]; !anchors[strings.TrimPrefix(runbook, "docs/operate.md#")] {
			t.Errorf("%s: there is no runbook %q", a.Alert, runbook)
		}
		if !strings.Contains(string(tests), "alertname: "+a.Alert+"\n") {
			t.Errorf("no test lets %s fire", a.Alert)
		}
		if severity := a.Labels["severity"]; severity != "warning" && severity != "critical" {
			t.Errorf("%s: severity %q", a.Alert, severity)
		}
	}
	if len(rules.Groups[0].Rules) < 14 {
		t.Errorf("%d alerts", len(rules.Groups[0].Rules))
	}
}

// headings are the anchors of docs/operate.md, as GitHub makes them.
func headings(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(operateFile)
	if err != nil {
		t.Fatal(err)
	}
	anchors := make(map[string]bool)
	for line := range strings.Lines(string(text)) {
		if title := strings.TrimLeft(line, "#"); title != line {
			anchors[anchor(title)] = true
		}
	}
	return anchors
}

func anchor(title string) string {
	drop := strings.NewReplacer("?", "", ",", "", ".", "", "`", "", " ", "-")
	return drop.Replace(strings.ToLower(strings.TrimSpace(title)))
}
