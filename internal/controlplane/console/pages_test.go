package console_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/queue"
)

// Each page, as each of those who may be signed in: it is there, well-formed,
// nothing that somebody else called a thing acts in it, and nobody sees another
// organisation's.
func TestPages(t *testing.T) {
	t.Parallel()
	e := newEstate(t)
	shop := "/workspaces/" + e.workspaces["shop/prod"].String()
	site := "/workspaces/" + e.workspaces["site/dev"].String()
	legacy := "/workspaces/" + e.workspaces["legacy/prod"].String()
	const admins, operators = "admin", "operator admin"

	for _, page := range []struct {
		path string
		has  []string          // for all members
		may  map[string]string // what is shown only to whom
		nots []string
	}{
		{path: "/", has: []string{"data/prod", "aws_rds_cluster.main", "42 %", "Review the plan", "Its plan needs approval", "Run 6 has been running in this workspace", "See the lock", "Error: creating EC2 Instance", "Fixed since", "2 of 3 slots in use", "No agent yet"},
			may: map[string]string{`class="btn btn-primary" href="/deploy"`: operators}, nots: []string{"First steps"}},
		{path: "/clusters", has: []string{`href="/clusters/staging"`, `data-state="ONLINE"`, `data-state="OFFLINE"`}, may: map[string]string{`action="/clusters#add"`: admins}},
		{path: "/clusters/prod", has: []string{"edge-1", fmt.Sprintf("Supports contract 2 of %d", queue.Contract), "helm install tendril oci://", "https://trellis.example", "tendril join", "SHA256:", "age1ql3"},
			may:  map[string]string{`action="/clusters/prod/pause#pause"`: admins, `action="/clusters/prod/policy#policy"`: admins, `action="/clusters/prod/tokens#tokens"`: admins, ">Revoke</button>": admins, "Deploy here": operators},
			nots: []string{e.Token}},
		{path: "/workspaces", has: []string{"shop/prod", "2 changes", "Locked", "Held", "Running", "Needs approval"}},
		{path: "/workspaces?q=SHOP&state=drifted&cluster=prod", has: []string{"shop/prod"}, nots: []string{"billing/prod"}},
		{path: "/workspaces?q=%25", has: []string{"No workspaces match"}, nots: []string{"billing/prod"}},
		{path: "/workspaces?state=failed", has: []string{"billing/prod", "legacy/prod"}, nots: []string{"billing/dev", "shop/prod"}},
		{path: shop, has: []string{"aws_db_instance.main", "i-0abc123", "2001:db8::1", ">aws</span>", "tainted"}, may: map[string]string{"Deploy again": operators}},
		{path: shop + "?tab=machines", has: []string{`href="/machines/` + e.machine + `"`, "10.1.2.4", "2 cores", "pve1"}, may: map[string]string{shop + "/power": operators, "Stop all (1)": operators, "/machines/" + e.machine + "/rebuild": operators, "/machines/" + e.machine + "/destroy": operators, shop + "/reveal": admins}, nots: []string{"Start all"}},
		{path: shop + "?q=i-0ABC", has: []string{"i-0abc123"}, nots: []string{"shop-prod</bdi>"}},
		{path: shop + "?tab=outputs", has: []string{"https://shop.example/&lt;b&gt;", "&#34;zones&#34;", "Sensitive, not stored"}},
		{path: shop + "?tab=drift", has: []string{"2 resources changed", "engine_version", "Sensitive, not shown", "Deleted <"}, may: map[string]string{shop + "/check": operators, `selected>Every 6 hours`: operators}},
		{path: shop + "?tab=history", has: []string{`href="/provisions/1"`, "v1.4.0", "+2 ~0"}},
		{path: shop + "?tab=state", has: []string{"State storage"}},
		{path: shop + "?tab=settings", has: []string{"The workspace is not held"}, may: map[string]string{shop + "/lock#lock": operators, shop + "/destroy#destroy": operators, shop + "/rebind#rebind": admins}},
		{path: site + "?tab=settings", has: []string{"Locked", "2 days ago"}, may: map[string]string{site + "/unlock#lock": operators, "Someone else locked it": admins}},
		{path: "/machines", has: []string{"web-1", "2 cores, 2048 MiB, 20 GiB disk", "10.1.2.4", "pve1", "shop/prod", "Unknown"}},
		{path: "/machines?q=10.1.2&status=running&pool=lab", has: []string{"web-1"}, nots: []string{"odd "}},
		{path: "/machines?group=pool", has: []string{`scope="rowgroup"><bdi>lab</bdi>`, "web-1"}},
		{path: "/machines?group=health", has: []string{`scope="rowgroup"><bdi>No health</bdi>`}},
		{path: "/machines?status=gone", has: []string{"No machines match"}, nots: []string{"web-1"}},
		{path: "/machines?workspace=" + e.workspaces["shop/prod"].String(), has: []string{"web-1", "Those of workspace"}},
		{path: "/machines/" + e.machine, has: []string{"ssh -p 2222 root@10.1.2.4", "debian-12", "class=a", `href="/provisions/1"`, "Running"},
			may: map[string]string{"/machines/" + e.machine + "/destroy": operators, "/machines/" + e.machine + "/stop": operators, "/machines/" + e.machine + "/restart": operators,
				"/machines/" + e.machine + "/refresh": operators, "/machines/" + e.machine + "/rebuild": operators, "/machines/" + e.machine + "/reveal": admins},
			nots: []string{"/machines/" + e.machine + "/start"}},
		{path: "/machines/" + e.Text(t, "SELECT id::text FROM public.machines WHERE name <> 'web-1'"), has: []string{"odd ", "Unknown"}, nots: []string{"ssh ", "/destroy", "<pre"}},
		{path: "/provisions/" + e.Text(t, "SELECT p.number::text FROM public.provisions p JOIN public.workspaces w ON w.id = p.workspace_id WHERE w.name = 'lab/prod'"),
			has: []string{"machine.lab-1", "Creating VM from template", `<li data-state="running" aria-current="step">`, "Waiting for network", "42 % · ", "Running commands ", "not reached"}},
		{path: "/provisions/1/inventory", has: []string{"web-1", "that this run changed last"}},
		{path: legacy + "?tab=settings", has: []string{"A state is not stored yet", "edge-1"}, may: map[string]string{legacy + "/release#release": admins}},
	} {
		for _, p := range []person.Person{e.viewer, e.operator, e.admin} {
			role := strings.TrimPrefix(p.Name, "Some ")
			got := e.get(t, p, page.path)
			for _, want := range page.has {
				if !strings.Contains(got, want) {
					t.Errorf("GET %s as %s lacks %q", page.path, role, want)
				}
			}
			for what, roles := range page.may {
				if shown, want := strings.Contains(got, what), strings.Contains(roles, role); shown != want {
					t.Errorf("GET %s as %s shows %q: %v, want %v", page.path, role, what, shown, want)
				}
			}
			for _, unwanted := range page.nots {
				if strings.Contains(got, unwanted) {
					t.Errorf("GET %s as %s has %q, want it not there", page.path, role, unwanted)
				}
			}
			wellFormed(t, page.path, got)
		}
		answer, got := e.ask(t, e.stranger, page.path, nil)
		for _, secret := range []string{"shop/prod", "edge-1", "aws_db_instance", "billing", "hostile"} {
			if strings.Contains(got, secret) {
				t.Errorf("GET %s as a stranger = %d with %q in it, want nothing of another organisation", page.path, answer.StatusCode, secret)
			}
		}
		if named := strings.Count(strings.SplitN(page.path, "?", 2)[0], "/") > 1; named && answer.StatusCode != http.StatusNotFound {
			t.Errorf("GET %s as a stranger = %d, want 404", page.path, answer.StatusCode)
		}
	}
}

// wellFormed says where a page's elements do not close as they opened, where an
// id is there twice, and where something hostile is more than text.
func wellFormed(t *testing.T, path, page string) {
	t.Helper()
	void := map[string]bool{"meta": true, "link": true, "input": true, "br": true, "hr": true, "img": true, "path": true, "base": true}
	var open []string
	ids := map[string]bool{}
	z := html.NewTokenizer(strings.NewReader(page))
	for {
		kind := z.Next()
		token := z.Token()
		switch kind {
		case html.ErrorToken:
			if !errors.Is(z.Err(), io.EOF) || len(open) > 0 {
				t.Errorf("%s ends with %v, and with %v open", path, z.Err(), open)
			}
			return
		case html.StartTagToken:
			if !void[token.Data] {
				open = append(open, token.Data)
			}
		case html.EndTagToken:
			if len(open) == 0 || open[len(open)-1] != token.Data {
				t.Errorf("%s closes %s where %v is open", path, token.Data, open)
				return
			}
			open = open[:len(open)-1]
			continue
		case html.TextToken:
			if len(open) > 0 && open[len(open)-1] == "script" && strings.TrimSpace(token.Data) != "" {
				t.Errorf("%s has a script of its own: %s", path, token.Data)
			}
			continue
		default:
			continue
		}
		for _, a := range token.Attr {
			switch {
			case a.Key == "id" && ids[a.Val]:
				t.Errorf("%s has the id %q twice", path, a.Val)
			case a.Key == "id":
				ids[a.Val] = true
			case a.Key == "style" || strings.HasPrefix(a.Key, "on"):
				t.Errorf("%s has %s=%q, which the policy forbids", path, a.Key, a.Val)
			case a.Key == "href" && strings.HasPrefix(strings.ToLower(strings.TrimSpace(a.Val)), "javascript:"):
				t.Errorf("%s has a link to %s", path, a.Val)
			}
		}
	}
}

// What forms ask for is done and told, or refused beside the form, with what was
// typed still there.
func TestForms(t *testing.T) {
	t.Parallel()
	e := newEstate(t)
	shop := "/workspaces/" + e.workspaces["shop/prod"].String()
	legacy := "/workspaces/" + e.workspaces["legacy/prod"].String()
	for _, c := range []struct {
		who    person.Person
		path   string
		form   string
		status int
		to     string // where a 303 leads, or what the page has
		check  string // SQL that answers true after it
	}{
		{e.viewer, shop + "/lock", "reason=typed+words", 404, "", `SELECT locked_at IS NULL FROM public.workspaces WHERE name = 'shop/prod'`},
		{e.operator, shop + "/lock", "reason=", 422, "settings", ""},
		{e.operator, shop + "/lock", "reason=" + strings.Repeat("x", 1001), 422, strings.Repeat("x", 1001), ""},
		{e.operator, shop + "/lock", "reason=upgrade", 303, shop + "?tab=settings", `SELECT lock_reason = 'upgrade' FROM public.workspaces WHERE name = 'shop/prod'`},
		{e.operator, shop + "/unlock", "reason=", 303, shop + "?tab=settings", `SELECT locked_at IS NULL FROM public.workspaces WHERE name = 'shop/prod'`},
		{e.operator, legacy + "/release", "reason=gone", 404, "", `SELECT unsaved_state_on IS NOT NULL FROM public.workspaces WHERE name = 'legacy/prod'`},
		{e.admin, legacy + "/release", "reason=gone", 303, legacy + "?tab=settings", `SELECT unsaved_state_on IS NULL FROM public.workspaces WHERE name = 'legacy/prod'`},
		{e.admin, shop + "/rebind", "repo=not+a+repo&path=&reason=my+reason", 422, `value="my reason"`, ""},
		{e.admin, shop + "/rebind", "repo=https://git.example/acme/other&path=x&reason=moved", 303, shop + "?tab=settings", `SELECT repo = 'https://git.example/acme/other' FROM public.workspaces WHERE name = 'shop/prod'`},
		{e.admin, shop + "/rebind", "repo=https://git.example/acme/envtempl&path=&reason=back", 303, shop + "?tab=settings", ""},
		{e.operator, shop + "/drift", "every=3600", 303, shop + "?tab=drift", `SELECT drift_every = '1 hour' FROM public.workspaces WHERE name = 'shop/prod'`},
		{e.operator, shop + "/drift", "every=60", 422, "is not between 5 minutes", `SELECT drift_every = '1 hour' FROM public.workspaces WHERE name = 'shop/prod'`},
		{e.operator, shop + "/check", "", 303, shop + "?tab=drift", `SELECT count(*) = 1 FROM public.provisions WHERE operation = 'refresh'`},
		{e.operator, shop + "/destroy", "confirm=shop", 422, `value="shop"`, `SELECT count(*) = 0 FROM public.provisions WHERE operation = 'destroy'`},
		{e.viewer, shop + "/destroy", "confirm=shop/prod", 404, "", `SELECT count(*) = 0 FROM public.provisions WHERE operation = 'destroy'`},
		{e.operator, "/machines/" + e.machine + "/destroy", "confirm=web", 422, "does not match", `SELECT count(*) = 0 FROM public.provisions WHERE operation = 'destroy'`},
		{e.viewer, "/machines/" + e.machine + "/destroy", "confirm=web-1", 404, "", `SELECT count(*) = 0 FROM public.provisions WHERE operation = 'destroy'`},
		{e.stranger, "/machines/" + e.machine + "/destroy", "confirm=web-1", 404, "", `SELECT count(*) = 0 FROM public.provisions WHERE operation = 'destroy'`},
		{e.operator, "/machines/" + e.machine + "/destroy", "confirm=web-1", 303, "/provisions/",
			`SELECT count(*) = 1 FROM public.provisions WHERE operation = 'destroy' AND config_snapshot -> 'targets' = '["machine.web-1"]'`},
		{e.viewer, "/machines/" + e.machine + "/stop", "", 404, "", `SELECT count(*) = 0 FROM public.provisions WHERE operation = 'power'`},
		{e.stranger, "/machines/" + e.machine + "/stop", "", 404, "", `SELECT count(*) = 0 FROM public.provisions WHERE operation = 'power'`},
		{e.operator, "/machines/" + e.machine + "/stop", "", 303, "/provisions/",
			`SELECT count(*) = 1 FROM public.provisions WHERE operation = 'power' AND config_snapshot -> 'targets' = '["machine.web-1"]' AND config_snapshot ->> 'power' = 'stop'`},
		{e.operator, "/machines/" + e.machine + "/rebuild", "", 303, "/provisions/",
			`SELECT count(*) = 1 FROM public.provisions WHERE config_snapshot -> 'replace' = '["machine.web-1"]' AND config_snapshot -> 'targets' = '["machine.web-1"]' AND config_snapshot ->> 'approval' = 'always'`},
		{e.operator, "/machines/" + e.machine + "/refresh", "", 303, "/provisions/", `SELECT count(*) = 1 FROM public.provisions WHERE operation = 'refresh' AND config_snapshot -> 'targets' = '["machine.web-1"]'`},
		{e.operator, "/machines/" + e.machine + "/reveal", "", 403, "only an admin", `SELECT count(*) = 0 FROM public.provisions WHERE operation = 'state'`},
		{e.admin, "/machines/" + e.machine + "/reveal", "", 303, "/provisions/", `SELECT count(*) = 1 FROM public.provisions WHERE operation = 'state' AND config_snapshot -> 'state' ->> 'command' = 'reveal'`},
		{e.operator, "/machines/" + e.machine + "/melt", "", 422, "told to melt", `SELECT true`},
		{e.operator, "/machines/" + e.Text(t, "SELECT id::text FROM public.machines WHERE name <> 'web-1'") + "/stop", "", 422, "which resource it is", `SELECT count(*) = 1 FROM public.provisions WHERE operation = 'power'`},
		{e.operator, shop + "/destroy", "confirm=shop/prod", 303, "/provisions/", `SELECT count(*) = 1 FROM public.provisions WHERE operation = 'destroy' AND NOT config_snapshot ? 'targets'`},
		{e.operator, "/clusters/prod/pause", "reason=why", 404, "", `SELECT paused_at IS NULL FROM public.clusters WHERE name = 'prod'`},
		{e.admin, "/clusters/prod/pause", "reason=" + strings.Repeat("y", 1001), 422, strings.Repeat("y", 1001), ""},
		{e.admin, "/clusters/prod/pause", "reason=why", 303, "/clusters/prod", `SELECT paused_at IS NOT NULL FROM public.clusters WHERE name = 'prod'`},
		{e.admin, "/clusters/prod/resume", "", 303, "/clusters/prod", `SELECT paused_at IS NULL FROM public.clusters WHERE name = 'prod'`},
		{e.admin, "/clusters/prod/policy", "approval=always&approvers=admin&four_eyes=yes&approval_expiry=a+while", 422, `value="a while"`, `SELECT approval = 'never' FROM public.clusters WHERE name = 'prod'`},
		{e.admin, "/clusters/prod/policy", "approval=always&approvers=admin&four_eyes=yes&approval_expiry=2+days", 303, "/clusters/prod", `SELECT approval = 'always' AND four_eyes AND approvers = 'admin' FROM public.clusters WHERE name = 'prod'`},
		{e.admin, "/clusters", "name=not+a+name!", 422, `value="not a name!"`, ""},
		{e.operator, "/clusters", "name=mine", 404, "", `SELECT count(*) = 2 FROM public.clusters`},
		{e.operator, "/clusters/prod/tokens", "overlap=24", 404, "", `SELECT count(*) = 1 FROM tendril.cluster_tokens t JOIN public.clusters c ON c.id = t.cluster_id WHERE c.name = 'prod'`},
		{e.admin, "/clusters/prod/tokens", "overlap=x", 422, "0 to 720", ""},
		{e.admin, "/clusters/prod/tokens/revoke", "token=", 422, "Choose which token", ""},
	} {
		form, err := url.ParseQuery(c.form)
		if err != nil {
			t.Fatal(err)
		}
		answer, page := e.ask(t, c.who, c.path, form)
		what := fmt.Sprintf("POST %s %.60s as %s", c.path, c.form, c.who.Name)
		switch got := answer.Header.Get("Location"); {
		case answer.StatusCode != c.status:
			t.Errorf("%s = %d, want %d: %.400s", what, answer.StatusCode, c.status, page)
		case c.status == http.StatusSeeOther && got != c.to && (!strings.HasSuffix(c.to, "/") || !strings.HasPrefix(got, c.to)):
			t.Errorf("%s leads to %s, want %s", what, got, c.to)
		case c.status == http.StatusUnprocessableEntity:
			if !strings.Contains(page, c.to) || !strings.Contains(page, `role="alert"`) {
				t.Errorf("%s = a page without %.40q and an alert, want what was typed and why not", what, c.to)
			}
			wellFormed(t, what, page)
		}
		if c.check != "" && e.Text(t, "SELECT ("+c.check+")::text") != "true" {
			t.Errorf("after %s: %s is not so", what, c.check)
		}
	}
}

// A token is in the answer to the POST that asked for it, and nowhere else.
func TestTokenIsShownOnce(t *testing.T) {
	t.Parallel()
	e := newEstate(t)
	answer, page := e.ask(t, e.admin, "/clusters", url.Values{"name": {"new-one"}})
	token := regexp.MustCompile(`tnd_[A-Za-z0-9_-]{20,}`).FindString(page)
	if answer.StatusCode != http.StatusOK || token == "" || answer.Header.Get("Cache-Control") != "no-store" {
		t.Fatalf("POST /clusters = %d, Cache-Control %q, token %q, want a page that nobody keeps, with the token", answer.StatusCode, answer.Header.Get("Cache-Control"), token)
	}
	wellFormed(t, "POST /clusters", page)
	for _, c := range answer.Cookies() {
		t.Errorf("POST /clusters sets the cookie %s, want none that could hold the token", c.Name)
	}
	for _, path := range []string{"/clusters", "/clusters/new-one", "/audit"} {
		if strings.Contains(e.get(t, e.admin, path), token) {
			t.Errorf("GET %s has the token, want it nowhere", path)
		}
	}
	_, page = e.ask(t, e.admin, "/clusters/new-one/tokens", url.Values{"overlap": {"24"}})
	if again := regexp.MustCompile(`tnd_[A-Za-z0-9_-]{20,}`).FindString(page); again == "" || again == token {
		t.Errorf("POST …/tokens shows %q, want another token", again)
	}
	if got := e.get(t, e.admin, "/clusters/new-one"); strings.Count(got, ">Revoke</button>") != 2 {
		t.Errorf("GET /clusters/new-one = %s, want two tokens that can be revoked", got)
	}
	if answer, _ = e.ask(t, e.admin, "/clusters/new-one/tokens/revoke", url.Values{"token": {"all"}}); answer.StatusCode != http.StatusSeeOther {
		t.Errorf("POST …/tokens/revoke = %d, want 303", answer.StatusCode)
	}
	if got := e.get(t, e.admin, "/clusters/new-one"); strings.Contains(got, ">Revoke</button>") || strings.Count(got, "Revoked</span>") != 2 {
		t.Errorf("GET /clusters/new-one = %s, want two tokens that are revoked", got)
	}
}

// Who has nothing yet is led to the first deploy, step by step.
func TestFirstSteps(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	nobody := person.Person{Name: "nobody"}
	if page := w.get(t, nobody, "/"); !strings.Contains(page, "You are not a member of an organisation") {
		t.Errorf("GET / of a member of none = %s, want what to do", page)
	}
	if page := w.get(t, w.stranger, "/"); !strings.Contains(page, "Add a cluster</a>") || strings.Count(page, `data-done="false"`) != 3 {
		t.Errorf("GET / of an empty organisation = %s, want three steps to do", page)
	}
	page := w.get(t, w.viewer, "/")
	if !strings.Contains(page, "An admin of acme can do this") || strings.Contains(page, "Start an agent</a>") {
		t.Errorf("GET / of a viewer = %s, want who does what is next", page)
	}
	for _, path := range []string{"/workspaces", "/clusters"} {
		wellFormed(t, path, w.get(t, w.stranger, path))
	}
}
