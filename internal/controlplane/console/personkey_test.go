package console_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/testkit/browsertest"
	"github.com/tendril-run/tendril/internal/trust"
)

// authority issues certificates.
type authority struct {
	*testing.T
	trust.Person
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	p, err := trust.NewPerson()
	if err != nil {
		t.Fatal(err)
	}
	return authority{t, p}
}

func (a authority) issue(recipient string, from, until time.Duration) string {
	a.Helper()
	text, err := a.Certify(trust.Certificate{Name: `Ada "<b>`, Recipient: recipient, Workspaces: []string{"acme/**"}, From: time.Now().Add(from), Until: time.Now().Add(until)})
	if err != nil {
		a.Fatal(err)
	}
	return text
}

// makeKey makes a key by clicking, and returns its public half.
func makeKey(tab *browsertest.Tab, at string) (recipient string) {
	tab.Visit(at + "/account")
	tab.Click("Create a key")
	tab.Wait(`document.querySelector("#key [data-key=recipient]")?.textContent.startsWith("age1")`)
	tab.WaitText("Have agents trust this key")
	return browsertest.Eval[string](tab, `document.querySelector("[data-key=recipient]").textContent`)
}

// sealedOutput has a run of a workspace end with a sensitive output that is sealed to
// a key, as an agent does it.
func (w *world) sealedOutput(t *testing.T, id uuid.UUID, recipient, name, value string) {
	t.Helper()
	to, err := seal.ParseRecipient(recipient)
	if err != nil {
		t.Fatal(err)
	}
	content, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := seal.Armoured(to, content)
	if err != nil {
		t.Fatal(err)
	}
	outputs, err := json.Marshal(map[string]any{name: map[string]any{"sensitive": true, "sealed": sealed}})
	if err != nil {
		t.Fatal(err)
	}
	w.force(t, "status = 'SUCCESS', started_at = now(), finished_at = now(), outputs = $2 WHERE id = $1", id, string(outputs))
}

// plainQuery is a deploy of a template that nobody has inspected: its form has the
// snapshot's own settings alone.
var plainQuery = "?" + url.Values{"cluster": {"prod"}, "repo": {"https://git.example/plain"}, "version": {"v1"}}.Encode()

// deploySomething fills in the form and deploys, and returns what is stored.
func (w *world) deploySomething(t *testing.T, tab *browsertest.Tab, at, workspace string) (id uuid.UUID, requester string) {
	t.Helper()
	tab.Visit(at + "/deploy" + plainQuery)
	tab.Fill("Workspace", workspace)
	tab.Click("Review")
	tab.WaitText("Run mode")
	tab.Click("Create plan")
	tab.Wait(`location.pathname.startsWith("/provisions/")`)
	const newest = "FROM public.provisions ORDER BY number DESC LIMIT 1"
	return uuid.MustParse(w.Text(t, "SELECT id::text "+newest)), w.Text(t, "SELECT coalesce(config_snapshot ->> 'requester_key', '') "+newest)
}

const revealed = `document.querySelector("[data-name=password] [data-part=value]:not([hidden])")?.textContent`

// A deploy names the browser's key by itself; what an agent seals to it is shown on
// the page when asked for, and neither it nor the key is ever sent.
func TestKeyInABrowser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada := newAuthority(t)
	at, sent := w.site(t, w.operator)
	tab := browsertest.New(t)
	tab.Allow("/live answers 404") // what follows events is no part of the console's pages
	recipient := makeKey(tab, at)
	if !sent.has("/assets/") || sent.has(recipient) {
		t.Error("the browser has sent the key before anything was deployed, or the recorder sees nothing")
	}
	tab.WaitText("--name 'Some operator' --workspaces '**'")
	tab.WaitText(seal.Fingerprint(recipient)) // by which agents call it

	// Without a certificate the key itself is named, with one the certificate.
	if _, requester := w.deploySomething(t, tab, at, "acme/key"); requester != recipient {
		t.Errorf("the deploy names %q, want the browser's key %q", requester, recipient)
	}
	tab.Visit(at + "/account")
	save := func(text string) {
		tab.Wait(fmt.Sprintf(`(document.getElementById("certificate").value = %q)`, text))
		tab.Click("Save the certificate")
	}
	certificate := ada.issue(recipient, -time.Hour, 24*time.Hour)
	for text, says := range map[string]string{
		"AGE-SECRET-KEY-1ABC": "This is not a certificate",
		ada.issue(newAuthority(t).Recipient(), -time.Hour, time.Hour): "The certificate is for another key, age1",
		ada.issue(recipient, -2*time.Hour, -time.Hour):                "The certificate has expired",
		certificate[:len(certificate)-1]:                              "The certificate is incomplete",
	} {
		save(text)
		tab.WaitText(says)
	}
	save("Certificate for Ada:\n" + certificate[:70] + "\n  " + certificate[70:] + "\n") // as mail breaks lines
	tab.WaitText("for acme/**, ends in 23 hours")
	tab.Visit(at + "/account") // it is kept
	tab.WaitText("for acme/**, ends in 23 hours")
	id, requester := w.deploySomething(t, tab, at, "acme/key")
	if requester != certificate {
		t.Errorf("the deploy names %q, want the certificate %q", requester, certificate)
	}

	// What was sealed to it, with what would turn the text around.
	hidden := "correct\u202e horse\nbattery & <b>staple</b>"
	w.sealedOutput(t, id, recipient, "password", hidden)
	outputs := at + "/workspaces/" + w.Text(t, "SELECT id::text FROM public.workspaces WHERE name = 'acme/key'") + "?tab=outputs"
	for range 2 { // the second time after a reload
		tab.Visit(outputs)
		tab.WaitText("Sensitive, sealed")
		tab.Wait(`!` + revealed)
		tab.Click("Reveal password")
		tab.Wait(revealed)
		if got, want := browsertest.Eval[string](tab, revealed), strings.Replace(hidden, "\u202e", "U+202E", 1); got != want {
			t.Errorf("revealed = %q, want %q", got, want)
		}
		if got := browsertest.Eval[string](tab, `document.querySelector("[data-part=copy] button").dataset.copy`); got != hidden {
			t.Errorf("Copy gives %q, want %q", got, hidden)
		}
	}
	// The page's refresh keeps it, and Hide takes it away.
	if !browsertest.Eval[bool](tab, `new Promise((done) => { document.addEventListener("htmx:afterSwap", () => done(Boolean(`+revealed+`)), {once: true}); htmx.trigger("#tab", "live"); })`) {
		t.Error("what was revealed is hidden when the page refreshes")
	}
	tab.Click("Hide password")
	tab.Wait(`!document.body.textContent.includes("battery")`)
	for _, secret := range []string{"battery", url.QueryEscape(hidden)} {
		if sent.has(secret) {
			t.Errorf("the browser has sent %q of what it has opened", secret)
		}
	}

	// Somebody else who signs in in this browser has no key.
	if browsertest.Eval[bool](tab, `(document.body.dataset.person = "another", import(document.querySelector("script[type=module]").src.replace("app.js", "personkey.js"))).then((m) => m.kept()).then(Boolean)`) {
		t.Error("another person is given this person's key")
	}

	// Another browser.
	other := browsertest.New(t)
	other.Allow("/live answers 404")
	other.Visit(outputs)
	other.WaitText("Sealed to a key outside this browser")
	other.WaitText(`The key of Ada "<b>: ` + seal.Fingerprint(recipient))
	other.WaitText("create a key in this browser, then deploy again")
	if browsertest.Eval[bool](other, `document.querySelector("[data-part=button]").checkVisibility()`) {
		t.Error("a browser without a key offers to reveal")
	}
}

// A reader may choose that outputs are not stored, and a key that was removed is named
// no more, whatever the tab has kept.
func TestChoosingTheRequester(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	at, _ := w.site(t, w.operator)
	tab := browsertest.New(t)
	const asked = `JSON.parse(document.getElementById("snapshot").value).requester_key`
	form := at + "/deploy" + plainQuery
	tab.Visit(form)
	tab.WaitText("You have no key in this browser")
	recipient := makeKey(tab.Another(), at)
	browsertest.Eval[bool](tab, `dispatchEvent(new PageTransitionEvent("pageshow", {persisted: true}))`) // as Back has it
	tab.WaitText("Only this browser can show them")
	tab.Visit(form)
	tab.Wait(asked + ` === "` + recipient + `"`)
	judge(tab)
	tab.Fill("Sensitive outputs", "Not stored")
	tab.WaitText("Nobody can read them here")
	tab.Wait(asked + ` === undefined`)
	tab.Visit(form) // the choice outlasts the page
	tab.WaitText("Nobody can read them here")
	tab.Fill("Sensitive outputs", "Sealed to your key in this browser")
	tab.Wait(asked + ` === "` + recipient + `"`)

	// Another's key stands in the JSON, and is an answer.
	other := newAuthority(t).Recipient()
	tab.Wait(fmt.Sprintf(`(() => { const a = document.getElementById("snapshot"); a.value = a.value.replace(%q, %q); a.dispatchEvent(new Event("input", {bubbles: true})); return true })()`, recipient, other))
	tab.WaitText("Anyone with that key can read them")
	tab.Fill("Sensitive outputs", "Sealed to your key in this browser")
	tab.WaitText("Only this browser can show them")

	tab.Visit(at + "/account")
	tab.Click("Remove the key")
	tab.WaitText("there is no copy")
	tab.Click("Remove the key") // in the dialog
	tab.Wait(`[...document.querySelectorAll("#key [data-key=make] button")].some((b) => b.checkVisibility())`)
	tab.Visit(form)
	tab.WaitText("You have no key in this browser")
	tab.Wait(asked + ` === undefined`)
	if _, requester := w.deploySomething(t, tab, at, "acme/none"); requester != "" {
		t.Errorf("without a key the deploy names %q", requester)
	}
}

// A run that is asked for again is sealed to the key of who asks now, and to nobody's
// where that browser has none, never to that of who asked first.
func TestAskedForAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	at, _ := w.site(t, w.operator)
	tab, other := browsertest.New(t), browsertest.New(t)
	for _, somebody := range []*browsertest.Tab{tab, other} {
		somebody.Allow("/live answers 404") // what follows events is no part of the console's pages
	}
	first := makeKey(tab, at)
	if _, requester := w.deploySomething(t, tab, at, "acme/again"); requester != first {
		t.Fatalf("the deploy names %q, want the browser's key %q", requester, first)
	}
	page := at + "/workspaces/" + w.Text(t, "SELECT id::text FROM public.workspaces WHERE name = 'acme/again'")
	w.force(t, "status = 'SUCCESS', started_at = now(), finished_at = now()")
	newest := func() string {
		return w.Text(t, "SELECT operation || ' ' || coalesce(config_snapshot ->> 'requester_key', '') FROM public.provisions ORDER BY number DESC LIMIT 1")
	}
	look := func() {
		other.Visit(page + "?tab=drift")
		other.Click("Check now")
		other.WaitText("This page shows the result")
	}
	look()
	if got := newest(); got != "refresh " {
		t.Errorf("asked for by a browser without a key: %q, want a refresh that names none", got)
	}
	own := makeKey(other, at)
	look()
	if got := newest(); got != "refresh "+own {
		t.Errorf("asked for by a browser with the key %s: %q, want a refresh that names it", own, got)
	}
	other.Visit(page + "?tab=settings")
	other.Wait(`(document.getElementById("confirm-name").value = "acme/again")`)
	other.Click("Destroy everything")
	other.Wait(`location.pathname.startsWith("/provisions/")`)
	if got := newest(); got != "destroy "+own {
		t.Errorf("asked for by a browser with the key %s: %q, want a destroy that names it", own, got)
	}
}

// A browser that cannot keep such a key says so, and names the command line.
func TestBrowserThatKeepsNoKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	at, _ := w.site(t, w.operator)
	for name, is := range map[string]struct{ lacks, says string }{
		"old":     {`SubtleCrypto.prototype.generateKey = () => Promise.reject(new DOMException("X25519", "NotSupportedError"))`, "This browser is too old"},
		"http":    {`Object.defineProperty(globalThis, "isSecureContext", {value: false})`, "This page was served over HTTP"},
		"private": {`IDBFactory.prototype.open = () => { throw new DOMException("no", "SecurityError") }`, "This browser keeps nothing for this site"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tab := browsertest.New(t)
			if err := chromedp.Do(tab.Context(), chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
				return target.Call(ctx, "Page.addScriptToEvaluateOnNewDocument", map[string]any{"source": is.lacks}, nil)
			})); err != nil {
				t.Fatal(err)
			}
			tab.Visit(at + "/account")
			tab.WaitText(is.says)
			tab.WaitText("Use the command line instead")
			if browsertest.Eval[bool](tab, `document.querySelector("#key [data-key=make]").checkVisibility()`) {
				t.Error("it offers to make a key all the same")
			}
			judge(tab)
			tab.Visit(at + "/deploy" + plainQuery)
			tab.WaitText("You have no key in this browser")
		})
	}
}
