package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"grapevine.example/gossip/member"
	"grapevine.example/node/config"
)

const minToken = 16

func ReadToken(file string) (string, error) {
	text, err := member.ReadSecret(file, config.MaxSecretFile)
	if err != nil {
		return "", fmt.Errorf("admin_token_file: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if len(token) < minToken || !config.HeaderWord(token) {
		return "", fmt.Errorf("admin_token_file %s: want one word of %d to %d bytes (make one with openssl rand -hex 32)", file, minToken, config.MaxSecretFile)
	}
	return token, nil
}

// openPaths need no token: balancers and collectors have none. Nor do the dashboard's files, which
// ask for it.
var openPaths = map[string]bool{"/healthz": true, "/readyz": true, "/metrics": true}

func isOpen(path string) bool {
	return openPaths[path] || path == "/" || strings.HasPrefix(path, "/ui/")
}

// Guard requires the configured token. Without one, all clients may look, but only direct clients
// on this machine may do more: they must address the node by IP or as localhost, against DNS
// rebinding, and send JSON, which cross-site pages cannot.
func (s *Server) Guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isOpen(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		if refused := s.refusal(r); refused != nil {
			if refused.Status == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", `Bearer realm="grapevine"`)
			}
			refused.write(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s *Server) refusal(r *http.Request) *Refusal {
	if s.TokenFile != "" {
		token, err := ReadToken(s.TokenFile)
		if err != nil {
			return Refuse(http.StatusInternalServerError, "", "correct the file: without it the admin API refuses all clients", "%v", err)
		}
		scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		want, got := sha256.Sum256([]byte(token)), sha256.Sum256([]byte(strings.TrimSpace(given)))
		if !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare(want[:], got[:]) != 1 {
			return Refuse(http.StatusUnauthorized, "Authorization", "send Authorization: Bearer TOKEN (grapevine --admin-token-file FILE)", "the token is missing or wrong")
		}
		return nil
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	here := err == nil && net.ParseIP(host).IsLoopback()
	if name := (&url.URL{Host: r.Host}).Hostname(); here && !strings.EqualFold(name, "localhost") && net.ParseIP(name) == nil {
		return Refuse(http.StatusForbidden, "Host", "address it by IP or as localhost, or give it an --admin-token-file", "the node is addressed as %q", name)
	}
	if looks(r) {
		return nil
	}
	if by := forwarded(r.Header); by != "" {
		return Refuse(http.StatusForbidden, by, giveToken, "the request came through a proxy, and %s", ownMachineOnly)
	}
	if !here {
		return Refuse(http.StatusForbidden, "", giveToken, "%s", ownMachineOnly)
	}
	return nil
}

const giveToken = "give the node an --admin-token-file, or run the command there"

const ownMachineOnly = "without a token changes, and questions that cost or tell more than a look, are taken from the node's own machine only"

// looks reports whether a request changes nothing, costs little and reveals no prompt.
func looks(r *http.Request) bool {
	switch query := r.URL.Query(); {
	case strings.HasPrefix(r.URL.Path, "/debug/"):
		return false // reveals flags, costs time
	case r.URL.Path == "/explain", r.URL.Path == "/receipts", r.URL.Path == "/doctor":
		return false // reveals whether a prompt was sent, or who sent which requests; the doctor compares prompts, up to 0.1 s
	case r.URL.Path == "/keys", query.Has("consistent"), query.Has("facts"):
		return false // asks every node, writes every voter's log, or scans all facts
	}
	return r.Method == http.MethodGet || r.Method == http.MethodHead
}

func forwarded(h http.Header) string {
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip", "Via"} {
		if _, ok := h[name]; ok {
			return name
		}
	}
	return ""
}
