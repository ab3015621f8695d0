package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"
)

func TestOpenAdminIsTold(t *testing.T) {
	leakCheck(t)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("a-token-for-operators"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		admin, token string
		told         bool
	}{
		{"127.0.0.1:0", "", false}, {"0.0.0.0:0", "", true}, {"0.0.0.0:0", token, false},
	} {
		var log lockedLog
		cfg := testConfig()
		cfg.Admin, cfg.AdminTokenFile, cfg.Log = tc.admin, tc.token, zerolog.New(&log)
		stopNode(t, startNode(t, cfg))
		if told := strings.Contains(log.String(), "give it an admin_token_file"); told != tc.told {
			t.Errorf("%+v: %s", tc, log.String())
		}
	}
}
