package console_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/testkit/browsertest"
)

// recorder keeps every byte that a browser sends.
type recorder struct {
	mu   sync.Mutex
	sent bytes.Buffer
}

// remember keeps a request, whose body can be read once more.
func (r *recorder) remember(request *http.Request) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return // the browser has gone
	}
	request.Body = io.NopCloser(bytes.NewReader(body))
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = fmt.Fprintln(&r.sent, request.URL, request.Header, string(body)) // to memory
}

func (r *recorder) has(text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Contains(r.sent.Bytes(), []byte(text))
}

// site serves the console to a browser as one person, under the policy that the
// real one has.
func (w *world) site(t *testing.T, p person.Person) (url string, sent *recorder) {
	t.Helper()
	sent = &recorder{}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		sent.remember(r)
		if strings.HasPrefix(r.URL.Path, "/provisions/") || r.URL.Path == "/favicon.ico" {
			return // another page's test
		}
		rw.Header().Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'")
		w.pages.ServeHTTP(rw, r.WithContext(person.With(r.Context(), p)))
	}))
	t.Cleanup(server.Close)
	return server.URL, sent
}

// judge looks at a page on a phone, and has it judged on a desktop; end to end it
// is looked at and judged in both themes.
func judge(tab *browsertest.Tab) {
	looks := browsertest.Looks()
	tab.Look(looks[2])
	tab.NoOverflow()
	tab.Look(looks[0])
	tab.NoOverflow()
	tab.Axe()
}

const secret = "correct-horse&battery staple"

// The whole way through the form, in a browser: what is typed is in the JSON,
// what is written there in the form, and a secret nowhere but in the message that
// the cluster's agents open.
func TestDeployInABrowser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	own := w.network(t)
	url, sent := w.site(t, w.operator)
	w.Exec(t, "INSERT INTO public.templates (org_id, name, repo, version) SELECT $1, 'net-' || i, 'https://git.example/net' || i, 'v1' FROM generate_series(1, 30) i", w.Org)
	tab := browsertest.Open(t, url+"/deploy?step=cluster")
	tab.Click("prod")
	tab.WaitText("Choose a template")
	judge(tab)

	// Found as it is typed, also by who comes back to where that was.
	tab.Fill("Search the templates", "netw")
	tab.WaitText("1 of 31 templates")
	tab.Wait(`document.querySelectorAll(".choice").length === 1 && location.search.includes("q=netw") && document.activeElement.id === "q"`)
	tab.Visit(tab.URL())
	tab.WaitText("1 of 31 templates")
	tab.Fill("Search the templates", "network")
	tab.Wait(`location.search.includes("q=network") && !document.querySelector(".htmx-request")`) // a last answer would take the hash away
	browsertest.Eval[bool](tab, `(window.before = true, location.hash = "main", true)`)           // as "Skip to the content" has it
	tab.Wait(`location.hash === "#main"`)
	browsertest.Eval[bool](tab, `(history.back(), true)`)
	tab.Wait(`!window.before && document.readyState === "complete" && document.querySelector("header") && document.getElementById("q").value === "network"`)
	tab.Click("network")
	tab.WaitText("Required")

	// The form speaks first.
	tab.Click("Review")
	tab.WaitText("5 required")
	tab.Fill("project_name", "acme")
	tab.Fill("environment", "prod")
	tab.Click("Fill in zones")
	tab.Click("Add to zones")
	tab.Fill("zones 1", "eu-1")
	tab.Fill("pools: what it is", "own value")
	tab.Click("Add to pools")
	tab.Fill("pools 1 name", "small")
	tab.Fill("pools 1 size", "many")
	tab.WaitText(`[0].size: a number is required, not string "many"`)
	tab.Fill("pools 1 size", "98765432109876543210")
	tab.Fill("pools 1 spot: what it is", "true")
	tab.Fill("debug: what it is", "true")
	tab.Fill("tags: what it is", "null")
	tab.Fill("db_password", "short")
	tab.WaitText("too short to be masked in a log")
	tab.Fill("db_password", secret)
	tab.WaitText("If blank: acme/prod")
	tab.Wait(`document.getElementById("snapshot").value.includes('"size": 98765432109876543210')`)

	// Then the JSON: what cannot be read is told with its place, and nothing goes.
	edit := func(from, to string) {
		tab.Wait(fmt.Sprintf(`(() => { const a = document.getElementById("snapshot"), was = a.value; a.value = was.replace(%q, %q);
			a.dispatchEvent(new Event("input", {bubbles: true})); return a.value !== was })()`, from, to))
	}
	edit(`"eu-1"`, `"eu-1",`)
	tab.WaitText(`no "," before "]"`)
	tab.Wait(`document.getElementById("fields").inert`)
	edit(`"eu-1",`, `"eu-1", "eu-2"`)
	tab.Wait(`document.querySelector("[aria-label='zones 2']").value === "eu-2" && !document.getElementById("fields").inert`)
	tab.Wait(fmt.Sprintf(`document.getElementById("v-db_password").value === %q`, secret))
	edit(`"project_name": "acme"`, `"project_name": "acme", "stray": 1`)
	tab.WaitText("Not variables of this template")
	tab.Click("Remove stray")
	edit(`"version": "v1.2.0"`, `"version": "v1.1.0"`)
	tab.WaitText("The JSON names version v1.1.0, and this form is for v1.2.0")
	edit(`"version": "v1.1.0"`, `"version": "v1.2.0"`)

	// A draft outlasts the page, without the secret.
	tab.Wait(fmt.Sprintf(`Object.values(sessionStorage).join().includes("eu-2") && !Object.values({...sessionStorage, ...localStorage}).join().includes(%q)`, secret))
	judge(tab)
	tab.Click("Review")
	tab.WaitText("Run mode")
	judge(tab)
	tab.Visit(tab.URL()) // again
	tab.WaitText("Run mode")
	tab.Wait(`history.back() || true`)
	tab.WaitText("A sealed value is set")
	tab.Wait(`document.querySelector("[aria-label='zones 2']").value === "eu-2"`)
	tab.Click("Review")
	tab.WaitText("Run mode")
	tab.Wait(`(() => { const b = document.querySelector("[data-deploy]"); b.click(); b.click(); return true })()`)
	tab.Wait(`location.pathname.startsWith("/provisions/")`)

	var stored struct {
		Workspace string                     `json:"workspace"`
		Approval  string                     `json:"approval"`
		Vars      map[string]json.RawMessage `json:"terraform_vars"`
		Sealed    map[string]string          `json:"sealed_vars"`
	}
	if err := json.Unmarshal([]byte(w.Text(t, "SELECT string_agg(config_snapshot::text, '') FROM public.provisions")), &stored); err != nil {
		t.Fatalf("the stored snapshots = %v, want one", err)
	}
	for name, want := range map[string]string{
		"project_name": `"acme"`, "environment": `"prod"`, "zones": `["eu-1", "eu-2"]`, "debug": "true", "tags": "null",
		"pools": `[{"name": "small", "size": 98765432109876543210, "spot": true}]`,
	} {
		if got := string(stored.Vars[name]); got != want {
			t.Errorf("terraform_vars.%s = %s, want %s", name, got, want)
		}
	}
	if len(stored.Vars) != 6 || stored.Approval != "always" {
		t.Errorf("the snapshot has the variables %v and approval %q, want six, and always", stored.Vars, stored.Approval)
	}
	use := seal.Use{Cluster: "prod", Workspace: "acme/prod", Repo: networkRepo, Name: "db_password"}
	value, err := own.OpenVariable(stored.Sealed["db_password"], use)
	if want, _ := json.Marshal(secret); err != nil || !bytes.Equal(bytes.ReplaceAll(value, []byte("&"), []byte(`\u0026`)), want) {
		t.Errorf("OpenVariable(db_password) = %s, %v, want %s", value, err, want)
	}
	use.Workspace = "acme/other"
	if _, err := own.OpenVariable(stored.Sealed["db_password"], use); err == nil {
		t.Error("OpenVariable(db_password) in another workspace = nil, want it refused")
	}
	// What has been deployed is not offered to who begins anew.
	tab.Visit(url + "/deploy" + networkQuery)
	tab.WaitText("Required")
	tab.Wait(`document.getElementById("v-project_name").value === ""`)
	for _, form := range []string{secret, "correct-horse", "battery", base64.StdEncoding.EncodeToString([]byte(secret))[:12]} {
		if sent.has(form) {
			t.Errorf("the browser has sent %q", form)
		}
	}
	if !sent.has("eu-2") { // else nothing was recorded
		t.Error("the recorder has not seen what was sent")
	}
}

// What an earlier run had sealed is used again in its workspace; for another one it
// is to be typed again, and is sealed for that.
func TestDeployFromInABrowser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	own := w.network(t)
	asked, err := json.Marshal(map[string]any{
		"template_source": map[string]any{"repo": networkRepo, "version": "v1.2.0"}, "workspace": "acme/own",
		"terraform_vars": map[string]any{"project_name": "acme", "environment": "prod", "zones": []string{"a"}}, "sealed_vars": map[string]any{"db_password": sealedOwn(t, own)},
	})
	if err != nil {
		t.Fatal(err)
	}
	id := w.DeploySnapshot(t, string(asked))
	url, _ := w.site(t, w.operator)
	tab := browsertest.Open(t, url+"/deploy?from="+w.Text(t, "SELECT number::text FROM public.provisions WHERE id = $1", id))
	tab.WaitText("A sealed value is set")
	tab.Wait(`!document.body.innerText.includes("sealed for the workspace")`)
	tab.Fill("Workspace", "")
	tab.WaitText("sealed for the workspace acme/own only: replace it")
	tab.Fill("Workspace", "acme/own")
	tab.Wait(`!document.body.innerText.includes("sealed for the workspace")`)
	tab.Fill("Workspace", "acme/new")
	tab.Click("Review")
	tab.WaitText("sealed for the workspace acme/own only: replace it")
	tab.Click("Replace db_password")
	tab.Fill("db_password", secret)
	tab.Wait(`!document.body.innerText.includes("sealed for the workspace")`)
	tab.Click("Review")
	tab.WaitText("Run mode")
	tab.Wait(`(() => { document.querySelector("[data-deploy]").click(); return true })()`)
	tab.Wait(`location.pathname.startsWith("/provisions/")`)
	message := w.Text(t, "SELECT config_snapshot -> 'sealed_vars' ->> 'db_password' FROM public.provisions WHERE id <> $1", id)
	if _, err := own.OpenVariable(message, seal.Use{Cluster: "prod", Workspace: "acme/new", Repo: networkRepo, Name: "db_password"}); err != nil {
		t.Errorf("OpenVariable(db_password) in the new workspace = %v", err)
	}
}

// Where the cluster has no key nothing can be sealed; where the key is another
// than before, people are told.
func TestDeployWithoutAKeyAndWithAnother(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.network(t)
	url, sent := w.site(t, w.operator)
	w.Exec(t, "UPDATE public.clusters SET age_public_key = NULL")
	tab := browsertest.Open(t, url+"/deploy"+networkQuery)
	tab.WaitText("The cluster prod has no key yet")
	tab.Wait(`document.getElementById("v-db_password").disabled`)

	w.network(t)
	tab.Wait(`localStorage.setItem("trellis-key:prod", "SHA256:another") || true`)
	tab.Visit(url + "/deploy" + networkQuery)
	tab.WaitText("This key differs from the one that you sealed to before")

	// A sensitive value in the JSON is not let out either, nor kept.
	tab.Wait(fmt.Sprintf(`(() => { const a = document.getElementById("snapshot"); a.value = a.value.replace('"terraform_vars": {}', '"terraform_vars": {"db_password": %q}');
		a.dispatchEvent(new Event("input", {bubbles: true})); return a.value.includes("db_password") })()`, secret))
	tab.WaitText("sensitive, but in plain text in the JSON")
	tab.Click("Review")
	tab.Wait(fmt.Sprintf(`!Object.values(sessionStorage).join().includes(%q)`, secret))
	if sent.has("battery") {
		t.Error("the browser has sent a sensitive value")
	}
}
