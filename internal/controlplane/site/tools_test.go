package site_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
)

// The protocol's own client is given nothing but the address of the tools: it finds the sign-in, a
// person says yes, and what it gets is good for the tools as that person and for nothing else.
func TestClientOfToolsSignsIn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.Exec(t, "INSERT INTO public.templates (org_id, name, repo, version) VALUES ($1, 'hello', 'https://git.example/hello', 'v1')", w.Org)
	person := w.signedIn(t, w.member(t, "operator"))
	const callback = "http://127.0.0.1:33418/callback"
	var tokens []string
	plain := &http.Transport{}
	t.Cleanup(plain.CloseIdleConnections)
	seen := roundTripper(func(r *http.Request) (*http.Response, error) {
		if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
			tokens = append(tokens, token)
		}
		return plain.RoundTrip(r)
	})
	handler, err := auth.NewAuthorizationCodeHandler(&auth.AuthorizationCodeHandlerConfig{
		DynamicClientRegistrationConfig: &auth.DynamicClientRegistrationConfig{Metadata: &oauthex.ClientRegistrationMetadata{ClientName: "An assistant", RedirectURIs: []string{callback}, TokenEndpointAuthMethod: "none"}},
		RedirectURL:                     callback,
		Client:                          &http.Client{Transport: plain},
		AuthorizationCodeFetcher: func(_ context.Context, args *auth.AuthorizationArgs) (*auth.AuthorizationResult, error) {
			page, err := url.Parse(args.URL)
			if err != nil {
				return nil, err
			}
			form := page.Query()
			form.Set("answer", "yes")
			form.Set("change", "propose")
			response, body := w.ask(t, person, http.MethodPost, page.Path, form)
			to, err := url.Parse(response.Header.Get("Location"))
			if err != nil || to.Query().Get("code") == "" {
				return nil, fmt.Errorf("the person's yes is answered %d %s", response.StatusCode, body)
			}
			return &auth.AuthorizationResult{Code: to.Query().Get("code"), State: to.Query().Get("state"), Iss: to.Query().Get("iss")}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "assistant", Version: "1"}, nil).Connect(t.Context(),
		&mcp.StreamableClientTransport{Endpoint: w.server.URL + "/mcp", HTTPClient: &http.Client{Transport: seen}, OAuthHandler: handler, MaxRetries: -1}, nil)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	defer func() { _ = session.Close() }()
	answer, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "templates"})
	if err != nil || answer.IsError || !strings.Contains(answer.Content[0].(*mcp.TextContent).Text, `"hello"`) {
		t.Errorf("templates = %+v, %v, want what the person sees", answer, err)
	}
	if len(tokens) == 0 {
		t.Fatal("no token was sent")
	}
	if response, _ := w.ask(t, browser(t), http.MethodGet, "/api/v1/me", nil, "Authorization", "Bearer "+tokens[len(tokens)-1]); response.StatusCode != http.StatusUnauthorized {
		t.Errorf("REST by the token of the tools = %d, want 401: it is for them alone", response.StatusCode)
	}
	if got := w.Text(t, "SELECT detail ->> 'client' FROM public.audit_events WHERE action = 'tool_call'"); got != "assistant/1" {
		t.Errorf("the audit has the client %q, want assistant/1", got)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
