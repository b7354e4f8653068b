package api

import (
	"net/http"
	"reflect"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"
)

// cliCode is what a command line shows that a browser has let in.
type cliCode struct {
	Code     string `json:"code" doc:"What the browser has brought. It is good for two minutes, once, whatever is shown with it." example:"5ZWQH3D4KJ2LMNOPQRSTUVWXYZ"`
	Verifier string `json:"verifier" pattern:"^[A-Za-z0-9._~-]{43,128}$" doc:"What the challenge was made of that the browser was sent with (RFC 7636, S256)." example:"dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"`
}

// cliToken is what it gets for it.
type cliToken struct {
	Token     string    `json:"token" doc:"An API token of the person's. Nobody can read it again."`
	ExpiresAt time.Time `json:"expires_at" doc:"When it ends."`
	User      cliUser   `json:"user" doc:"Who has let it in."`
}

type cliUser struct {
	ID    uuid.UUID `json:"id" doc:"The person's id."`
	Name  string    `json:"name,omitempty" doc:"What they are called."`
	Email string    `json:"email,omitempty" doc:"Their address, as the issuer has it."`
}

// documentSignIn adds to the document what package signin answers below the prefix:
// no operation of this package, for nobody is signed in who asks for a token.
func documentSignIn(o *huma.OpenAPI) {
	schema := func(name string, of any) *huma.Schema {
		return o.Components.Schemas.Schema(reflect.TypeOf(of), true, name)
	}
	content := func(mediaType string, s *huma.Schema) map[string]*huma.MediaType {
		return map[string]*huma.MediaType{mediaType: {Schema: s}}
	}
	responses := func(own map[string]*huma.Response, problems ...int) map[string]*huma.Response {
		for _, status := range problems {
			text := strconv.Itoa(status)
			own[text] = &huma.Response{Description: meaning[text], Content: content(problemType, schema("Problem", Problem{}))}
		}
		return own
	}
	o.AddOperation(&huma.Operation{
		OperationID: "get-cli-token", Method: http.MethodPost, Path: prefix + "/cli/token", Tags: []string{"People"},
		Summary: "Change a code from the browser for an API token",
		Description: "How trellis login ends: it sends a browser to /cli/authorize with port, state, challenge and host; the person says yes there, and the browser brings a code to that port of 127.0.0.1. " +
			"What shows it needs not be signed in. A code that has been used, or is another's, is refused (403, code_invalid).",
		Security:    []map[string][]string{},
		RequestBody: &huma.RequestBody{Required: true, Content: content("application/json", schema("CLICode", cliCode{}))},
		Responses: responses(map[string]*huma.Response{"200": {Description: "The token", Content: content("application/json", schema("CLIToken", cliToken{}))}},
			http.StatusBadRequest, http.StatusForbidden, http.StatusTooManyRequests, http.StatusServiceUnavailable),
	})
	o.AddOperation(&huma.Operation{
		OperationID: "revoke-cli-token", Method: http.MethodDelete, Path: prefix + "/cli/token", Tags: []string{"People"},
		Summary: "Revoke the API token that asks", Description: "How trellis logout ends.",
		Security:  []map[string][]string{{"bearer": {}}},
		Responses: responses(map[string]*huma.Response{"204": {Description: "It has ended"}}, http.StatusUnauthorized, http.StatusServiceUnavailable),
	})
}
