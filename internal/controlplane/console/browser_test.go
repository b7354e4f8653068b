package console_test

import (
	"fmt"
	"log/slog"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/controlplane/console"
	"github.com/tendril-run/tendril/internal/controlplane/live"
	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/controlplane/signin"
	"github.com/tendril-run/tendril/internal/controlplane/site"
	"github.com/tendril-run/tendril/internal/testkit/browsertest"
)

// enter opens the home page of the whole site on an estate's database, signed in
// as one of its people; at is the site's address.
func (e *estate) enter(t *testing.T, p person.Person, options ...browsertest.Option) (tab *browsertest.Tab, at string) {
	t.Helper()
	s, err := site.Start(t.Context(), site.Options{DatabaseURL: e.URL, Version: "v0.0-test", Streams: live.Limits{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s)
	t.Cleanup(func() {
		s.Close()
		server.CloseClientConnections()
		server.Close()
	})
	link, err := signin.NewLink(t.Context(), s.Database(), server.URL, p.ID)
	if err != nil {
		t.Fatal(err)
	}
	tab = browsertest.Open(t, link, options...)
	tab.Click("Sign in")
	tab.Wait(`document.querySelector("main h1")?.textContent === "Home"`)
	return tab, server.URL
}

// What pages do in a browser, by keyboard and as things happen.
func TestShellInABrowser(t *testing.T) {
	t.Parallel()
	e := newEstate(t)
	tab, at := e.enter(t, e.admin)

	// A switch of the theme is kept, and there before anything is drawn.
	tab.Click("Dark")
	tab.Visit(at + "/clusters")
	if got := browsertest.Eval[string](tab, `getComputedStyle(document.body).backgroundColor`); !dark(got) {
		t.Errorf("after choosing Dark the next page's background is %s, want a dark one", got)
	}
	tab.Click("Auto")

	// The script keeps the words that the server began with.
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	agos := []time.Duration{0, 4 * time.Second, 59 * time.Second, time.Minute, time.Hour - 1e9, 23 * time.Hour, 50 * time.Hour, 29 * 24 * time.Hour, 70 * 24 * time.Hour, 4000 * 24 * time.Hour, -90 * time.Minute}
	var want, thens []string
	for _, ago := range agos {
		want, thens = append(want, console.Since(now.Add(-ago), now)), append(thens, strconv.FormatInt(now.Add(-ago).UnixMilli(), 10))
	}
	got := browsertest.Eval[[]string](tab, fmt.Sprintf(`import(document.querySelector("script[type=module]").src.replace("app.js", "times.js")).then((m) => [%s].map((then) => m.words(then, %d)))`,
		strings.Join(thens, ","), now.UnixMilli()))
	if !slices.Equal(got, want) {
		t.Errorf("words of %v ago = %q, want %q as the server says", agos, got, want)
	}

	// Shortcuts, and none while somebody types.
	tab.Press("gw")
	tab.Wait(`location.pathname === "/workspaces" && document.readyState === "complete"`)
	tab.Press("/")
	tab.Wait(`document.activeElement.id === "q"`)
	tab.Press("gh?")
	if got := browsertest.Eval[string](tab, `document.activeElement.value + location.pathname`); !strings.HasSuffix(got, "gh?/workspaces") {
		t.Errorf("typing gh? into the search leads to %q, want it typed", got)
	}

	// What happens elsewhere shows without anybody loading the page again.
	tab.Visit(at + "/")
	tab.WaitText("Run 6 has been running in this workspace")
	e.deploy(t, "late/arrival", "")
	tab.WaitText("late/arrival")
	// Nor what happened before the page's stream was open, as when one comes Back.
	browsertest.Eval[bool](tab, `(dispatchEvent(new Event("pagehide")), window.witness = new EventSource("/live"),
		window.told = new Promise((told) => witness.addEventListener("changed", () => told(true))), new Promise((done) => (witness.onopen = () => done(true))))`)
	e.deploy(t, "unseen/arrival", "")
	if !browsertest.Eval[bool](tab, `told.then(() => new Promise((done) => {
		witness.close();
		const Stream = EventSource;
		let again = false; // and it shows by that, not by the next hint of anything
		window.EventSource = class extends Stream {
			addEventListener(what, heard) { what === "changed" ? (again = true) : super.addEventListener(what, heard); }
		};
		dispatchEvent(new PageTransitionEvent("pageshow", {persisted: true}));
		const until = Date.now() + 30_000, shown = () => again && document.body.textContent.includes("unseen/arrival");
		const look = () => (shown() || Date.now() > until ? done(shown()) : setTimeout(look, 50));
		look();
	}))`) {
		t.Error("what happened while the page had no stream does not show")
	}

	// What cannot be taken back is asked about, by the name typed, and not done
	// until then.
	tab.Visit(at + "/clusters/staging")
	tab.Click("Revoke all tokens")
	tab.Wait(`document.querySelector("#confirm").open && document.querySelector("#confirm [value=yes]").disabled`)
	tab.Press("\u001b") // Escape
	tab.Wait(`!document.querySelector("#confirm").open`)
	valid := `SELECT count(*)::text FROM tendril.cluster_tokens t JOIN public.clusters c ON c.id = t.cluster_id WHERE c.name = 'staging' AND revoked_at IS NULL`
	if got := e.Text(t, valid); got != "1" {
		t.Fatalf("after Escape there are %s tokens, want the one", got)
	}
	tab.Click("Revoke all tokens")
	tab.Wait(`document.activeElement.id === "confirm-typed"`)
	tab.Press("staging")
	tab.Click("Revoke all")
	tab.WaitText("Revoked 1 token of staging")
	if got := e.Text(t, valid); got != "0" {
		t.Errorf("after the name was typed there are %s tokens, want none", got)
	}
}

// A page whose server is away says so, and catches up by itself; one whose
// session has ended leads to sign in, and keeps what was typed.
func TestShellWithoutItsServer(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	tab := s.enter(t, "operator")
	tab.Allow("net::ERR_|htmx:|401")
	tab.Wait(`document.readyState === "complete"`)
	s.wire.Sever(true)
	tab.WaitText("The server is not responding")
	s.Deploy(t, "meanwhile")
	s.wire.Sever(false)
	tab.WaitText("meanwhile")
	tab.Wait(`!document.querySelector("#toasts .alert")`)

	s.Exec(t, "UPDATE tendril.credentials SET revoked_at = clock_timestamp() WHERE revoked_at IS NULL")
	browsertest.Eval[bool](tab, `dispatchEvent(new Event("online"))`) // or in ten seconds
	tab.WaitText("Your session has ended. Sign in again")
	if got := browsertest.Eval[string](tab, `document.querySelector("#toasts a").getAttribute("href")`); got != "/signin?to=%2F" {
		t.Errorf("the link to sign in again = %s, want /signin and back", got)
	}
}

// Pages as phones and the dark see them, without a fault that keeps anybody out.
func TestShellForEverybody(t *testing.T) {
	t.Parallel()
	e := newEstate(t)
	tab, at := e.enter(t, e.admin)
	shop := "/workspaces/" + e.workspaces["shop/prod"].String()
	paths := []string{"/", shop + "?tab=drift", "/clusters/prod", "/workspaces/" + e.workspaces["legacy/prod"].String() + "?tab=settings", "/workspaces", "/audit", shop, "/machines", "/machines/" + e.machine, "/machines/plan"}
	tab.Look(browsertest.Looks()[2]) // a phone
	for _, path := range paths {
		tab.Visit(at + path)
		if tab.NoOverflow(); strings.Contains(path, "?tab=") { // end to end the others are judged
			tab.Axe()
		}
	}

	// A word that nothing breaks makes no page wider than its window.
	e.Exec(t, "INSERT INTO public.templates (org_id, name, repo, version, description) VALUES ($1, 'wordy', 'https://git.example/wordy', 'v1', repeat('d', 900))", e.Org)
	e.Exec(t, "INSERT INTO public.people (org_id, user_id, name, email) SELECT org_id, user_id, repeat('n', 190), '' FROM public.org_members WHERE org_id = $1 ON CONFLICT (org_id, user_id) DO UPDATE SET name = excluded.name", e.Org)
	tab.Look(browsertest.Looks()[0])
	for _, path := range []string{"/templates", "/templates/wordy", "/members"} {
		tab.Visit(at + path)
		tab.NoOverflow()
	}
}

// dark reports whether a colour such as rgb(15, 17, 21) is.
func dark(colour string) bool {
	colour = strings.TrimPrefix(colour, "rgb(")
	return len(colour) > 2 && (colour[1] == ',' || colour[2] == ',')
}
