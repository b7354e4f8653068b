package signin

import (
	"net/http"
	"strings"

	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/controlplane/problem"
)

// endToken revokes the API token that asks: the CLI logs out.
func (s *SignIn) endToken(w http.ResponseWriter, r *http.Request) {
	if p, ok := person.From(r.Context()); !ok || !p.Token {
		problem.Write(w, http.StatusUnauthorized, "not_signed_in", "this ends the API token that asks, and there is none")
		return
	}
	_, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if err := s.records.end(r.Context(), digest(strings.TrimSpace(token))); err != nil {
		if r.Context().Err() == nil {
			s.Log.Error("an API token cannot be revoked", "error", err)
		}
		problem.Write(w, http.StatusServiceUnavailable, "unavailable", "the database does not answer; try again")
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
