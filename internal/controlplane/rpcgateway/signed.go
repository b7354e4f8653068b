package rpcgateway

import (
	"context"
	"encoding/hex"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/tendril-run/tendril/internal/signature"
)

// asSigned tells the database which key has signed the request. Any role could make these
// settings; tendril.signing_key() believes sessions of the gateway's own login role alone.
const asSigned = `SELECT set_config('tendril.signing_key', $1, true), set_config('tendril.signed_at', $2, true),
	set_config('tendril.nonce', $3, true), set_config('tendril.address', $4, true),
	set_config('tendril.service_account', $5, true)`

// signedRequest is the context's key of what asSigned tells, as [][]byte.
type signedRequest struct{}

// verified returns the request with what its signature says, if it has one. Whose key that is,
// the database decides.
func (g *Gateway) verified(r *http.Request, body []byte, address netip.Addr) (*http.Request, *refusal) {
	if !signature.Present(r.Header) {
		return r, nil
	}
	authorities := g.options.Authorities
	if authorities == nil {
		authorities = []string{r.Host}
	}
	s, err := signature.Verify(r, body, authorities, time.Now())
	if err != nil {
		return r, sqlRefusal("PT401", err.Error(), "signature_refused", "sign each request with the agent's key, for the URL that this server is reached by")
	}
	told := [][]byte{
		[]byte(hex.EncodeToString(s.Key)), strconv.AppendInt(nil, s.Created.Unix(), 10), []byte(s.Nonce), []byte(address.WithZone("").String()), {},
	}
	return r.WithContext(context.WithValue(r.Context(), signedRequest{}, told)), nil
}

// signedBy are the values of asSigned, nil for a request that is not signed.
func signedBy(ctx context.Context) [][]byte {
	told, _ := ctx.Value(signedRequest{}).([][]byte)
	return told
}

// repeated is the context of a held call's repeat, which names no nonce: the request came once.
func repeated(ctx context.Context) context.Context {
	told := signedBy(ctx)
	if told == nil {
		return ctx
	}
	told = slices.Clone(told)
	told[nonceOf] = []byte{}
	return context.WithValue(ctx, signedRequest{}, told)
}

// keyOf, nonceOf and accountOf are where those are in asSigned.
const keyOf, nonceOf, accountOf = 0, 2, 4
