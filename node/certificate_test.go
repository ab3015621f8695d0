package node

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"math/big"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// TestCertificateTimes: a certificate outside its validity is served, and reported everywhere.
func TestCertificateTimes(t *testing.T) {
	dir := t.TempDir()
	cfg := testConfig()
	cfg.TLSCert, cfg.TLSKey = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	write := func(from, to time.Duration) (end time.Time) {
		t.Helper()
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(from), NotAfter: time.Now().Add(to), DNSNames: []string{"router"}}
		der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		private, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		writePEM(t, cfg.TLSCert, "CERTIFICATE", der)
		writePEM(t, cfg.TLSKey, "PRIVATE KEY", private)
		return c.NotAfter
	}
	var log bytes.Buffer
	cfg.Log = zerolog.New(&log)
	write(-48*time.Hour, -24*time.Hour)
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "expired at") {
		t.Errorf("no warning at the start: %s", log.String())
	}
	for _, tc := range []struct {
		from, to time.Duration
		problem  string
	}{
		{-48 * time.Hour, -24 * time.Hour, "expired at"}, {24 * time.Hour, 48 * time.Hour, "not valid before"}, {-time.Hour, time.Hour, ""}, {-48 * time.Hour, -time.Hour, "expired at"},
	} {
		end := write(tc.from, tc.to)
		log.Reset()
		if _, err := n.Reload(*n.Running()); err != nil {
			t.Fatal(err)
		}
		if warned := strings.Contains(log.String(), `"level":"warn"`) && strings.Contains(log.String(), EventCertificate) && strings.Contains(log.String(), tc.problem); warned != (tc.problem != "") {
			t.Errorf("%q: logged %s", tc.problem, log.String())
		}
		st := n.Status().Certificate
		if st == nil || !strings.HasPrefix(st.Problem, tc.problem) || (st.Problem == "") != (tc.problem == "") || st.NotAfter.Unix() != end.Unix() {
			t.Errorf("%q: %+v", tc.problem, st)
		}
		if told := strings.Contains(n.Summary(), "its certificate "+tc.problem); told != (tc.problem != "") {
			t.Errorf("%q: %s", tc.problem, n.Summary())
		}
		families, err := n.metrics.Registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		value := 0.0
		for _, f := range families {
			if f.GetName() == "grapevine_tls_certificate_expiry_timestamp_seconds" {
				value = f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		if int64(value) != end.Unix() {
			t.Errorf("%q: the metric says %v, want %d", tc.problem, value, end.Unix())
		}
	}
}
