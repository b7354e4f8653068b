package rpcgateway

import (
	"crypto/subtle"
	"net/http"

	"github.com/tendril-run/tendril/internal/postgrest"
)

// keyError is what Supabase's front door says of keys; it has no code.
type keyError struct {
	Message string `json:"message"`
	Hint    string `json:"hint"`
}

// checkKey asks for the API key where there is one. Without, clients may send
// what they like.
func (g *Gateway) checkKey(header http.Header) *refusal {
	want := g.options.APIKey
	if want == "" {
		return nil
	}
	got := header.Get(postgrest.APIKey)
	switch {
	case got == "":
		return unauthorized("No API key found in request", "No `apikey` request header was found.")
	case subtle.ConstantTimeCompare([]byte(got), []byte(want)) != 1:
		return unauthorized("Invalid API key", "Double check the API key of this server.")
	}
	return nil
}

func unauthorized(message, hint string) *refusal {
	return &refusal{status: http.StatusUnauthorized, body: keyError{message, hint}}
}
