package deploy_test

import (
	"path/filepath"
	"strings"
	"testing"
)

// The rpm is installed, started, upgraded and erased by rpm on a booted machine, whose scriptlets find systemd running. The machine is a
// Debian, which satisfies no dependency of an rpm by name, so these are not checked. As usual for rpms, the user and the state stay.
func TestRPM(t *testing.T) {
	dir := packages(t)
	m := boot(t, "rpm", "", filepath.Join(dir, "old")+":/old", filepath.Join(dir, "new")+":/new")
	m.run("rpm -i --nodeps /old/*.rpm && id grapevine && rpm -V --nodeps --noscripts grapevine")
	if state, _ := m.try("systemctl is-active grapevine || systemctl is-enabled grapevine"); state != "inactive\ndisabled\n" {
		t.Errorf("after the installation: %q", state)
	}
	m.run("systemctl enable --now grapevine && curl -sf http://127.0.0.1:8081/healthz && systemctl reload grapevine")
	m.run("echo '# by an operator' >>/etc/grapevine/grapevine.yaml")
	pid := m.mainPID()
	if said := m.run("rpm -U --nodeps /new/*.rpm"); !strings.Contains(said, "still runs") || !strings.Contains(said, "USR2") {
		t.Errorf("an upgrade does not say that the router is to be replaced or restarted: %s", said)
	}
	m.run("grep 'by an operator' /etc/grapevine/grapevine.yaml && systemctl is-active grapevine")
	if m.mainPID() != pid {
		t.Error("the upgrade restarted the router")
	}
	m.run(recipe(t, "Replace a running router"))
	eventually(t, "the new version serves", func() bool {
		return m.mainPID() != pid && strings.Contains(m.run("/proc/$(systemctl show -P MainPID grapevine)/exe --version"), "1.1.0")
	})
	m.run("rpm -e grapevine")
	if state, _ := m.try("systemctl is-active grapevine || true"); state != "inactive\n" {
		t.Errorf("after the removal: %q", state)
	}
	if left := m.run("find /usr /etc/systemd -name '*grapevine*' ! -path '/usr/share/doc/*'"); left != "" {
		t.Errorf("a removal leaves %s", left)
	}
	m.run("grep 'by an operator' /etc/grapevine/grapevine.yaml.rpmsave && id grapevine && test -d /var/lib/grapevine")
}
