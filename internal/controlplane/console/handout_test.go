package console_test

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/testkit/browsertest"
)

// made has a run make machines in a workspace, and is the path of its page.
func (s *scene) made(t *testing.T, workspace string, machines ...provision.Machine) string {
	t.Helper()
	r := s.begin(t, workspace)
	r.reaches(t, provision.StageCheckout, provision.StagePlan, provision.StageApply)
	r.reports(t, provision.Success, provision.Detail{Stage: provision.StageOutputs, Machines: machines})
	return "/workspaces/" + s.Text(t, "SELECT workspace_id::text FROM public.provisions WHERE id = $1", r.id)
}

// watchFiles has the page remember what it gives the browser to save, and what it takes back.
const watchFiles = `(() => {
	const make = URL.createObjectURL, revoke = URL.revokeObjectURL;
	window.files = []; window.open_urls = 0;
	URL.createObjectURL = (blob) => { files.push({type: blob.type, text: blob.text()}); open_urls++; return make.call(URL, blob); };
	URL.revokeObjectURL = (url) => { open_urls--; return revoke.call(URL, url); };
	HTMLAnchorElement.prototype.click = function () { files.at(-1).name = this.download; };
	window.print = () => { window.printed = document.querySelectorAll(".slip").length; };
	return true;
})()`

// The credentials of all machines are asked for by one run, opened in the browser that asked,
// printed and saved there, and gone from the page when it is left. They are never sent.
func TestHandOutInABrowser(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	path := s.made(t, "acme/class",
		provision.Machine{Name: "net-ann", Status: provision.MachineRunning, Address: "machine.net-ann", IPAddresses: []string{"10.0.0.5"}, Actions: []provision.MachineAction{provision.MachineReveals}},
		provision.Machine{Name: "net-bob", Status: provision.MachineRunning, Address: "machine.net-bob", IPAddresses: []string{"10.0.0.6"}})
	operator := s.enter(t, "operator")
	operator.Visit(s.wire.URL() + path + "?tab=machines")
	operator.WaitText("net-ann")
	if strings.Contains(operator.Text(), "Credentials") {
		t.Error("an operator is offered the credentials, want admins alone")
	}
	tab := s.enter(t, "admin")
	page := s.wire.URL() + path + "?tab=machines"
	tab.Visit(page)
	tab.Allow("422") // that is what the next lines want
	tab.Click("Credentials")
	tab.WaitText("You have no key in this browser to seal the credentials to")
	recipient := makeKey(tab, s.wire.URL())
	tab.Visit(page)
	tab.Click("Credentials")
	tab.WaitText("An agent seals the credentials to your key")
	if got := s.Text(t, "SELECT operation || ' ' || (config_snapshot ->> 'state') || ' ' || (config_snapshot ->> 'requester_key') FROM public.provisions ORDER BY number DESC LIMIT 1"); got != `state {"command": "reveal"} `+recipient {
		t.Fatalf("queued is %s, want one reveal of all machines, to the browser's key", got)
	}

	hidden := []string{`=cmd|"/c calc"!A1`, "battery\u202estaple"}
	handedOut := []provision.HandedOut{
		{Name: "net-ann", Address: "10.0.0.5", Port: 2222, User: "student", Password: hidden[0], Command: "ssh -p 2222 student@10.0.0.5", Others: map[string]string{}},
		{Name: "+net-bob<b>", Address: "10.0.0.6", Port: 22, User: "student", Password: hidden[1], Command: "ssh student@10.0.0.6", Others: map[string]string{"token": "-1\n2"}},
	}
	to, err := seal.ParseRecipient(recipient)
	if err != nil {
		t.Fatal(err)
	}
	content, err := json.Marshal(handedOut)
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := seal.Armoured(to, content)
	if err != nil {
		t.Fatal(err)
	}
	r := s.take(t, uuid.MustParse(s.Text(t, "SELECT id::text FROM public.provisions ORDER BY number DESC LIMIT 1")))
	r.reports(t, provision.Success, provision.Detail{Stage: provision.StageOutputs, Outputs: map[string]provision.Output{provision.HandOutOutput: {Sensitive: true, Sealed: sealed}}})
	tab.WaitText("Show credentials")
	judge(tab)
	tab.Click("Show credentials")
	tab.WaitText("net-ann")
	if got, want := browsertest.Eval[[]string](tab, `[...document.querySelectorAll(".slip")].map((slip) => slip.innerText.replace(/\s+/g, " "))`), []string{
		`net-ann Address 10.0.0.5 SSH port 2222 User student Password ` + hidden[0] + ` Sign in ssh -p 2222 student@10.0.0.5`,
		`+net-bob<b> Address 10.0.0.6 SSH port 22 User student Password batteryU+202Estaple Sign in ssh student@10.0.0.6 token -1 2`,
	}; strings.Join(got, "; ") != strings.Join(want, "; ") {
		t.Errorf("the slips are %q, want %q", got, want)
	}
	judge(tab)
	for _, look := range browsertest.Looks() {
		tab.Look(look)
		tab.Screenshot("handout")
	}
	// On paper there are the slips alone, and dark on white whatever the page's theme.
	tab.Look(browsertest.Looks()[0])
	tab.Click("Dark")
	media := func(name string) {
		if err := chromedp.Do(tab.Context(), chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
			return target.Call(ctx, "Emulation.setEmulatedMedia", map[string]any{"media": name}, nil)
		})); err != nil {
			t.Fatal(err)
		}
	}
	media("print")
	if got := browsertest.Eval[string](tab, `[...document.querySelectorAll(".side, .top, .page-head, .handout-note, button, .slip")].filter((e) => e.checkVisibility()).map((e) => e.className).join()`); got != "card slip,card slip" {
		t.Errorf("printed are %q, want the slips alone", got)
	}
	if got := browsertest.Eval[string](tab, `getComputedStyle(document.querySelector(".slip dd")).color`); !dark(got) {
		t.Errorf("printed in %s, want a dark colour", got)
	}
	tab.Screenshot("handout-printed")
	media("")
	tab.Click("Auto")
	browsertest.Eval[bool](tab, watchFiles)
	tab.Click("Print")
	tab.Wait(`window.printed === 2`)
	tab.Click("Download CSV")
	if got, want := browsertest.Eval[string](tab, `files[0].text`), provision.HandOutCSV(handedOut); got != want {
		t.Errorf("the file is %q, want %q as the command line has it", got, want)
	}
	if got := browsertest.Eval[string](tab, `[files.length, files[0].name, files[0].type, open_urls].join()`); got != "1,credentials-acme-class.csv,text/csv,0" {
		t.Errorf("the file: %s, want one, and its address taken back", got)
	}

	// In nothing that outlives the page, and not in it once it is hidden or left.
	if kept := browsertest.Eval[string](tab, `JSON.stringify([localStorage, sessionStorage, document.cookie, location.href, history.state])`); strings.Contains(kept, "battery") || strings.Contains(kept, "calc") {
		t.Errorf("the browser keeps %s", kept)
	}
	gone := `!document.documentElement.outerHTML.includes("battery") && !document.documentElement.outerHTML.includes("calc")`
	tab.Click("Hide")
	tab.Wait(gone)
	tab.Click("Show credentials")
	tab.Wait(`document.querySelectorAll(".slip").length === 2`)
	if !browsertest.Eval[bool](tab, `(dispatchEvent(new PageTransitionEvent("pagehide", {persisted: true})), `+gone+`)`) {
		t.Error("a page that is left still shows credentials")
	}
	tab.Visit(s.wire.URL() + r.path())
	tab.WaitText("Credentials of all machines")
	for _, text := range []string{"battery", "calc", strconv.Quote(hidden[0])} {
		if s.sent.has(text) {
			t.Errorf("the browser has sent %q of what it has opened", text)
		}
	}
	if !s.sent.has("/handout") {
		t.Error("the recorder sees nothing")
	}

	// Another browser of somebody else shows nothing, and a run of another kind has no such page.
	other := s.enter(t, "admin")
	other.Visit(s.wire.URL() + r.path() + "/handout")
	other.WaitText("Sealed to a key outside this browser")
	if browsertest.Eval[bool](other, `document.querySelector("[data-part=show]").checkVisibility()`) {
		t.Error("a browser without the key offers to show the credentials")
	}
	other.Allow("404")
	other.Visit(s.wire.URL() + "/provisions/1/handout")
	other.WaitText("hands out no credentials")
}
