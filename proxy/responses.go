package proxy

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"

	"github.com/valyala/fasthttp"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/prompt"
)

const responsePrefix = "resp_" // SGLang refuses ids without it

// responseIDs makes the ids of responses: an AES block that names the backend which stores the
// response. Every node of the fleet reads them. DESIGN.md has the format.
type responseIDs struct{ cipher cipher.Block }

type idBlock [aes.BlockSize]byte

func newResponseIDs(h *prefixtree.Hasher) responseIDs {
	key := h.Secret("ids of responses")
	block, err := aes.NewCipher(key[:16])
	if err != nil {
		panic(err) // only for another key length
	}
	return responseIDs{block}
}

// name writes an id of prompt.ResponseIDLen bytes to dst, the only one with its 64 random bits.
func (r responseIDs) name(dst []byte, backend string, tenant []byte, b *idBlock) {
	binary.LittleEndian.PutUint32(b[:4], prefixtree.BackendKey(backend))
	binary.LittleEndian.PutUint32(b[4:8], tenantMark(tenant))
	binary.LittleEndian.PutUint64(b[8:], rand.Uint64())
	r.cipher.Encrypt(b[:], b[:])
	hex.Encode(dst[copy(dst, responsePrefix):], b[:])
}

// holder returns the key of the backend in an id that a node of the fleet made for the tenant.
func (r responseIDs) holder(id, tenant []byte, b *idBlock) (key uint32, ok bool) {
	if len(id) != prompt.ResponseIDLen || string(id[:len(responsePrefix)]) != responsePrefix {
		return 0, false
	}
	if _, err := hex.Decode(b[:], id[len(responsePrefix):]); err != nil {
		return 0, false
	}
	r.cipher.Decrypt(b[:], b[:])
	return binary.LittleEndian.Uint32(b[:4]), binary.LittleEndian.Uint32(b[4:8]) == tenantMark(tenant)
}

func tenantMark(tenant []byte) uint32 {
	sum := sha256.Sum256(tenant)
	return binary.LittleEndian.Uint32(sum[:])
}

var responseLost = fault{fasthttp.StatusNotFound, "response_not_found",
	"no backend stores this response any more: send the whole conversation as input, without previous_response_id"}

// findHolder sends the request to the backend that stores the response. Ids that no node made are
// left to the backend that the policy chooses, but with tenants refused: they may be another
// tenant's.
func (e *exchange) findHolder(id []byte) (fault, bool) {
	if len(id) == 0 {
		return fault{}, false
	}
	q := &e.query
	q.Holder, q.Stored = e.proxy.responses.holder(id, e.tenant, &e.block)
	return responseLost, !q.Stored && !e.proxy.cfg.Tenant.none()
}
