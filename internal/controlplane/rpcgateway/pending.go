package rpcgateway

import (
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/tendril-run/tendril/internal/agentkey"
	"github.com/tendril-run/tendril/internal/postgrest"
)

// ProvidersPath begins the one path that is not PostgREST's: what waits for the agent with a
// key, in the words of a provider's contracts.
//
//	GET /api/v1/providers/{key, 64 hexadecimal digits}/contracts/pending-provision
const ProvidersPath = "/api/v1/providers/"

const pendingFunction = "pending_provisions"

// pendingOf is the key in such a path.
func pendingOf(path string) (key string, is bool) {
	rest, under := strings.CutPrefix(path, ProvidersPath)
	key, is = strings.CutSuffix(rest, "/contracts/pending-provision")
	return strings.ToLower(key), under && is
}

// pending answers it to a request that is signed by that key.
func (g *Gateway) pending(w *asked, r *http.Request, address netip.Addr, key string) (name string, no *refusal) {
	if r.Method != http.MethodGet {
		return pendingFunction, &refusal{status: http.StatusMethodNotAllowed, header: map[string]string{"Allow": http.MethodGet},
			body: postgrest.NewError(postgrest.CodeBadMethod, "Cannot use the "+shortened(r.Method)+" method here", "", "use GET")}
	}
	share, leave := g.shares.of(address)
	defer leave()
	body, done, no := g.readBody(w, r, share)
	defer done()
	if no != nil {
		return pendingFunction, no
	}
	r, no = g.verified(r, body, address)
	if no != nil {
		return pendingFunction, no
	}
	signed := signedBy(r.Context())
	if signed == nil || string(signed[keyOf]) != key {
		return pendingFunction, sqlRefusal("PT401", "this must be signed by the key in its path", "signature_refused", "sign the request by HTTP Message Signatures (RFC 9421), as docs/GATEWAY.md has it")
	}
	public, err := hex.DecodeString(key)
	if err != nil {
		return pendingFunction, noPlace(r.URL.Path)
	}
	fingerprint := json.RawMessage(strconv.Quote(agentkey.Fingerprint(public)))
	return pendingFunction, g.answer(w, r, share, pendingFunction, map[string]json.RawMessage{"p_token_hash": fingerprint}, preferences{})
}
