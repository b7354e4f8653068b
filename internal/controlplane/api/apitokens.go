package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

type newAPITokenInput struct {
	Keyed
	Body struct {
		Name string `json:"name" minLength:"1" maxLength:"200" doc:"What will use it, for people." example:"ci"`
		Days int    `json:"days,omitempty" minimum:"1" maximum:"366" default:"90" doc:"How long it lasts."`
	}
}

// TokenRef is the path parameter that names an API token.
type TokenRef struct {
	ID uuid.UUID `path:"id" doc:"The token's id."`
}

// apiTokens registers what people do with their own API tokens.
func (a *api) apiTokens(h huma.API) {
	add(a, h, huma.Operation{
		OperationID: "list-api-tokens", Method: http.MethodGet, Path: "/api-tokens", Tags: []string{"People"},
		Summary: "Your own API tokens, the newest first", Description: "In one page.",
	}, func(ctx context.Context, _ *struct{}) (*listed[store.Credential], error) {
		found, err := a.as(ctx).Credentials(ctx)
		found = slices.DeleteFunc(found, func(c store.Credential) bool { return c.Kind != "api_token" })
		return listAfter("api-tokens", found, "", err)
	})
	onceSecret(a, h, huma.Operation{
		OperationID: "create-api-token", Method: http.MethodPost, Path: "/api-tokens", Tags: []string{"People"}, DefaultStatus: http.StatusCreated,
		Summary:     "Make an API token",
		Description: "It may do what you may, and nobody can read it again. An API token cannot make others: one that has leaked ends when it is revoked.",
	}, func(ctx context.Context, s *store.Store, in *newAPITokenInput) (string, store.APIToken, error) {
		made, err := s.CreateAPIToken(ctx, in.Body.Name, time.Duration(in.Body.Days)*24*time.Hour)
		return prefix + "/api-tokens", made, err
	})
	add(a, h, huma.Operation{
		OperationID: "revoke-api-token", Method: http.MethodDelete, Path: "/api-tokens/{id}", Tags: []string{"People"}, DefaultStatus: http.StatusNoContent,
		Summary: "Revoke an API token of your own", Description: "It ends at once.",
	}, func(ctx context.Context, in *TokenRef) (*struct{}, error) {
		was, err := a.as(ctx).RevokeCredential(ctx, in.ID)
		if err == nil && !was {
			err = newProblem(http.StatusNotFound, "token_not_found", fmt.Sprintf("you have no API token %s", in.ID), "")
		}
		return nil, err
	})
}
