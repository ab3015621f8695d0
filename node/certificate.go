package node

import (
	"crypto/tls"
	"fmt"
	"os"

	"grapevine/gossip/member"
)

// maxKeyFile bounds what is read as a private key, in bytes.
const maxKeyFile = 1 << 20

// loadKeyPair reads a certificate chain and its private key. The key's file is held to
// the same modes as every other secret.
func loadKeyPair(certFile, keyFile string) (*tls.Certificate, error) {
	chain, err := os.ReadFile(certFile)
	if err != nil {
		return nil, err
	}
	key, err := member.ReadSecret(keyFile, maxKeyFile)
	if err != nil {
		return nil, err
	}
	cert, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return nil, fmt.Errorf("%s with %s: %w", certFile, keyFile, err)
	}
	return &cert, nil
}
