package node

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"strings"

	"grapevine/gossip/member"
)

// minToken is the shortest token of the admin API that is taken: anything shorter
// could be searched for.
const minToken = 16

// maxTokenFile bounds what is read as a token.
const maxTokenFile = 4096

// ReadToken reads a token of the admin API from a file.
func ReadToken(file string) (string, error) {
	text, err := member.ReadSecret(file, maxTokenFile)
	if err != nil {
		return "", fmt.Errorf("admin_token_file: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if len(token) < minToken || !headerWord(token) {
		return "", fmt.Errorf("admin_token_file %s: want one word of %d to %d bytes (make one with openssl rand -hex 32)", file, minToken, maxTokenFile)
	}
	return token, nil
}

// openPaths are answered to everyone, also at metrics_listen: balancers and collectors ask
// them, and have no token.
var openPaths = map[string]bool{"/healthz": true, "/readyz": true, "/metrics": true}

// guard lets through to the admin API who may use it. With a token that is who
// has it. Without one everybody may look, and who sits on this machine may
// change things, ask what costs or tells more (looks), and take profiles: not who comes through a proxy on this machine,
// whose address is no more this machine's than his. Nor a page in a browser here:
// changes must say that they are JSON, and whoever asks from here must address the
// node by an address or as localhost, not by a name that somebody else's DNS may
// lead here.
func (n *Node) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if openPaths[r.URL.Path] {
			next.ServeHTTP(w, r)
			return
		}
		if refused := n.refusal(r); refused != nil {
			if refused.status == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", `Bearer realm="grapevine"`)
			}
			refused.write(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// refusal is why a request may not use the admin API, nil if it may.
func (n *Node) refusal(r *http.Request) *Refusal {
	if n.cfg.AdminTokenFile != "" {
		token, err := ReadToken(n.cfg.AdminTokenFile)
		if err != nil {
			return &Refusal{status: http.StatusInternalServerError, Reason: err.Error(), Remedy: "put the file in order: nobody is let in without it"}
		}
		scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		want, got := sha256.Sum256([]byte(token)), sha256.Sum256([]byte(strings.TrimSpace(given)))
		if !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare(want[:], got[:]) != 1 {
			return &Refusal{status: http.StatusUnauthorized, Reason: "the token is missing or wrong", Place: "Authorization",
				Remedy: "send Authorization: Bearer TOKEN (grapevine --admin-token-file FILE)"}
		}
		return nil
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	here := err == nil && net.ParseIP(host).IsLoopback()
	if name := hostname(r.Host); here && !strings.EqualFold(name, "localhost") && net.ParseIP(name) == nil {
		return &Refusal{status: http.StatusForbidden, Reason: fmt.Sprintf("the node is addressed as %q", name), Place: "Host",
			Remedy: "address it by IP or as localhost, or give it an --admin-token-file"}
	}
	if looks(r) {
		return nil
	}
	if by := forwarded(r.Header); by != "" {
		return &Refusal{status: http.StatusForbidden, Reason: "the request came through a proxy, and " + ownMachineOnly, Place: by,
			Remedy: "give the node an --admin-token-file, or run the command there"}
	}
	if !here {
		return &Refusal{status: http.StatusForbidden, Reason: ownMachineOnly,
			Remedy: "give the node an --admin-token-file, or run the command there"}
	}
	return nil
}

const ownMachineOnly = "without a token changes, and questions that cost or tell more than a look, are taken from the node's own machine only"

// looks says whether a request changes nothing, costs little and tells nothing of what
// clients send.
func looks(r *http.Request) bool {
	switch query := r.URL.Query(); {
	case strings.HasPrefix(r.URL.Path, "/debug/"):
		return false // a profile shows what runs, with its flags, and slows it down
	case r.URL.Path == "/explain":
		return false // tells whether somebody has sent a prompt
	case r.URL.Path == "/keys", query.Has("consistent"), query.Has("facts"):
		return false // asks every node, writes to the log of every voter, scans all facts
	}
	return r.Method == http.MethodGet || r.Method == http.MethodHead
}

// forwarded names the header by which a proxy says that it passes a request on, "" if
// none does.
func forwarded(h http.Header) string {
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip", "Via"} {
		if _, ok := h[name]; ok {
			return name
		}
	}
	return ""
}
