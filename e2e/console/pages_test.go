package console

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/testkit/browsertest"
)

// page is one page to be looked at, and a text by which it is known to show what
// it is for.
type page struct{ name, path, shows string }

// look looks at pages, one after another.
func (h *house) look(tab *browsertest.Tab, pages ...page) {
	for _, p := range pages {
		tab.Visit(h.Runtime().BrowserURL + p.path)
		tab.WaitText(p.shows)
		h.seen.page(tab, p.name)
	}
}

// runPages are the provision's page in each of its states.
func runPages(t *testing.T, h *house) {
	of := map[string]string{} // the newest run of each status
	for _, p := range h.runs(t, 200) {
		if path := "/provisions/" + strconv.FormatInt(p.Number, 10); of[string(p.Status)] == "" && !strings.HasPrefix(p.Workspace, "demo/") {
			of[string(p.Status)] = path
		}
	}
	h.look(h.signIn(t, h.Runtime().BrowserURL),
		page{"run-queued", of["QUEUED"], "Waiting:"},
		page{"run-processing", of["PROCESSING"], "In progress"},
		page{"run-awaiting", of["AWAITING_APPROVAL"], "needs approval"},
		page{"run-failed", of["FAILED"], "What to do"},
		page{"provisions", "/provisions", "payments/prod"},
		page{"provisions-none", "/provisions?status=CANCELLED&operation=unlock", "No runs match"},
		page{"templates", "/templates", "sample-web-service"},
		page{"template", "/templates/sample-web-service", "database_password"},
		page{"template-broken", "/templates/sample-edge-node", "Unclosed configuration block"},
		page{"template-new", "/templates/new", "Add a template"},
	)
}

// estatePages are those of what exists and who is there.
func estatePages(t *testing.T, h *house) {
	at := func(name string) string {
		w, err := h.store.WorkspaceByRef(t.Context(), uuid.Nil, uuid.Nil, name)
		if err != nil {
			t.Fatal(err)
		}
		return "/workspaces/" + w.ID.String()
	}
	machine, err := h.store.MachineByRef(t.Context(), uuid.Nil, uuid.Nil, "search-1")
	if err != nil {
		t.Fatal(err)
	}
	pool, err := h.store.PoolByRef(t.Context(), uuid.Nil, uuid.Nil, "rack-2")
	if err != nil {
		t.Fatal(err)
	}
	org, err := h.store.FindOrg(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	clusters, err := h.store.Places(t.Context(), org.ID)
	if err != nil {
		t.Fatal(err)
	}
	planned, err := h.store.PlanMachines(t.Context(), clusters[0].ID, json.RawMessage(`{"template_source": {"repo": "https://git.example/lab", "version": "v1"}, "workspace": "demo/planned"}`), []map[string]any{{"name": "planned-1", "cores": 2}})
	if err != nil {
		t.Fatal(err)
	}
	tab := h.signIn(t, h.Runtime().BrowserURL)
	tab.Allow(`/no-such-page answers 404`)
	h.look(tab,
		page{"home", "/", "sample-prod-eu"},
		page{"workspaces", "/workspaces", "network/prod"},
		page{"workspace-locked", at("network/prod"), "Migration of the address plan"},
		page{"workspace-settings", at("network/prod") + "?tab=settings", "Migration of the address plan"},
		page{"workspace-drift", at("network/prod") + "?tab=drift", "rift"},
		page{"workspace-history", at("network/prod") + "?tab=history", "network/prod"},
		page{"workspace-held", at("edge/store-17"), "edge/store-17"},
		page{"machines", "/machines", "search-3"},
		page{"machine", "/machines/" + machine.ID.String(), "ssh debian@10.20.14.21"},
		page{"machines-plan", "/machines/plan", "Plan machines"},
		page{"machine-planned", "/machines/" + planned[0].String(), "This machine is not there yet"},
		page{"machine-plan", "/machines/" + planned[0].String() + "/plan", "Edit the plan of"},
		page{"pools", "/pools", "connection refused"},
		page{"pool", "/pools/" + pool.ID.String(), "pve3"},
		page{"clusters", "/clusters", "sample-edge"},
		page{"cluster", "/clusters/sample-prod-eu", "eu-central-1a"},
		page{"audit", "/audit", "Ada Lovelace"},
		page{"members", "/members", "grace@example.com"},
		page{"invitations", "/invitations", "No open invitations"},
		page{"account", "/account", "Local user"},
		page{"account-token", "/account?name=assistant&change=propose&may_apply=lab%2F*", "Workspaces where plans don't wait"},
		page{"not-found", "/no-such-page", "There is no page"},
	)
}

// oncePages are those that come by doing something, and those of others than the
// console.
func oncePages(t *testing.T, h *house) {
	link, err := h.Link(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tab := browsertest.Open(t, link)
	h.seen.page(tab, "sign-in")
	tab.Click("Sign in")
	tab.Wait(`location.pathname === "/" && document.querySelector("nav")`)
	h.look(tab, page{"notifications-none", "/notifications", "No notifications yet"})
	tab.Fill("Name", "looked-at")
	tab.Fill("URL", "https://hooks.example/looked-at")
	tab.Fill("Kind", "generic")
	tab.Click("Add the webhook")
	tab.WaitText("Signing secret, shown once")
	h.seen.page(tab, "notification-secret")
	tab.Click("I have saved the secret")
	tab.WaitText("looked-at")
	h.seen.page(tab, "notification")
	h.look(tab, page{"notifications", "/notifications", "looked-at"})

	tab.Visit(h.Runtime().BrowserURL + "/clusters")
	tab.Fill("Name", "looked-at")
	tab.Click("Add the cluster")
	tab.WaitText("Next: start an agent")
	h.seen.page(tab, "cluster-token")
	tab.Click("I have saved the token")
	tab.WaitText("looked-at")
	h.seen.page(tab, "cluster-new")
	tab.Click("Make a join token")
	tab.WaitText("A join token for looked-at")
	h.seen.page(tab, "cluster-join-token")

	ask := url.Values{"port": {"7777"}, "state": {strings.Repeat("s", 43)}, "host": {"a laptop"}, "challenge": {strings.Repeat("c", 43)}}
	program := url.Values{"response_type": {"code"}, "code_challenge_method": {"S256"}, "code_challenge": {strings.Repeat("c", 43)},
		"client_id": {"trc_" + base64.RawURLEncoding.EncodeToString([]byte(`{"n":"An assistant","r":["http://127.0.0.1:7777/callback"]}`))}}
	h.look(tab,
		page{"cli", "/cli/authorize?" + ask.Encode(), "a laptop"},
		page{"oauth", "/oauth/authorize?" + program.Encode(), "An assistant"},
		page{"api", "/api/v1/docs", "provisions"},
	)
	tab.Visit(h.Runtime().BrowserURL)
	tab.Allow("/ answers 401|Error Code 401 from /|htmx:") // what the page asks for while it is left
	tab.Click("Sign out")
	tab.Wait(`location.pathname === "/signin"`)
	h.seen.page(tab, "signed-out")
}
