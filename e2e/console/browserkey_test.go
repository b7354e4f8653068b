package console

import (
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/testkit/browsertest"
	"github.com/tendril-run/tendril/internal/trust"
)

// exporting asks the browser for the kept key in each form that WebCrypto knows, and
// answers what it says.
const exporting = `(async () => {
	const settled = (r) => new Promise((done, failed) => { r.onsuccess = () => done(r.result); r.onerror = () => failed(r.error); });
	const database = await settled(indexedDB.open("trellis"));
	const all = await settled(database.transaction("keys").objectStore("keys").getAll());
	database.close();
	const said = [all.length + " key", all[0].key.type, "extractable " + all[0].key.extractable];
	for (const format of ["raw", "pkcs8", "jwk"]) {
		said.push(format + " " + (await crypto.subtle.exportKey(format, all[0].key).then(() => "exported", (e) => e.name)));
	}
	return said.join(", ");
})()`

// browserKey is a person's key that the browser makes and keeps: a deploy names it by
// itself, what the agent seals to it is shown when asked for, after a reload too, and
// another browser is told what to do.
func browserKey(t *testing.T, h *house) {
	const workspace = "demo/browser-key"
	at := h.Runtime().BrowserURL
	tab := h.signIn(t, at)
	configure := at + "/deploy?cluster=local&template=hello&step=configure"
	tab.Visit(configure)
	tab.WaitText("Sensitive outputs: not stored")
	tab.Click("Create a key")
	tab.WaitText("Your key in this browser")
	tab.Click("Create a key")
	tab.WaitText("Have agents trust this key")
	if got, want := browsertest.Eval[string](tab, exporting), "1 key, private, extractable false, raw InvalidAccessError, pkcs8 InvalidAccessError, jwk InvalidAccessError"; got != want {
		t.Errorf("the kept key: %s, want %s", got, want)
	}
	h.seen.page(tab, "account-key")
	h.certify(t, tab)
	h.seen.page(tab, "account-key-certified")

	tab.Visit(configure)
	tab.Wait(`document.querySelector("#fields:not([hidden]) input")`)
	tab.Fill("Workspace", workspace)
	tab.Fill("name", "Ada")
	tab.WaitText("Only this browser can show them")
	h.seen.page(tab, "deploy-configure-key")
	tab.Click("Review")
	tab.WaitText("Summary")
	tab.WaitText("Sealed to the key of Local user")
	h.seen.page(tab, "deploy-review-key")
	tab.Click("Apply immediately")
	tab.Click("Deploy now")
	tab.Wait(`document.querySelector("#run[data-over]")`)
	run := tab.URL()

	// The value is what the agent's Terraform has drawn: nobody else knows it.
	reveal := func(tab *browsertest.Tab) string {
		tab.Click("Reveal token")
		tab.Wait(`document.querySelector("[data-name=token] [data-part=value]:not([hidden])")?.textContent`)
		return browsertest.Eval[string](tab, `document.querySelector("[data-name=token] [data-part=value]").textContent`)
	}
	value := reveal(tab)
	h.seen.page(tab, "provision-revealed")
	tab.Click("Hide token")
	tab.Wait(`!document.body.textContent.includes(` + strconv.Quote(value) + `)`)
	tab.Visit(run)
	if again := reveal(tab); again != value || len(value) < 3 {
		t.Errorf("after a reload the output is %q, want %q again", again, value)
	}
	outputs := browsertest.Eval[string](tab, `document.querySelector("h1 a").href + "?tab=outputs"`)
	tab.Visit(outputs)
	if got := reveal(tab); got != value {
		t.Errorf("the workspace's page reveals %q, want %q", got, value)
	}
	h.seen.page(tab, "workspace-revealed")

	h.handsOut(t, tab)

	// Another browser of the same person.
	other := h.signIn(t, at)
	other.Visit(run)
	other.WaitText("Sealed to a key outside this browser")
	other.WaitText("create a key in this browser, then deploy again")
	h.seen.page(other, "provision-sealed-elsewhere")
	other.Visit(at + "/account")
	other.Click("Create a key")
	other.WaitText("Have agents trust this key")
	other.Visit(outputs)
	other.WaitText("the new run seals them to your key in this browser")
	if browsertest.Eval[bool](other, `Boolean([...document.querySelectorAll("[data-part=button]")].find((b) => b.checkVisibility()))`) {
		t.Error("another browser offers to reveal what it cannot open")
	}
	h.seen.page(other, "workspace-sealed-elsewhere")

	// Once it is removed there is nothing left that could open it.
	tab.Visit(at + "/account")
	tab.Click("Remove the key")
	tab.WaitText("There is no copy. Deploy again to have them sealed to another key")
	h.seen.page(tab, "account-key-remove")
	tab.Click("Remove the key")
	tab.Wait(`[...document.querySelectorAll("#key button")].some((b) => b.checkVisibility() && b.textContent.includes("Create a key"))`)
	h.seen.page(tab, "account-key-none")
	tab.Visit(run)
	tab.WaitText("Sealed to a key outside this browser")
}

// handsOut deploys machines by clicking, and has their passwords opened in the browser.
func (h *house) handsOut(t *testing.T, tab *browsertest.Tab) {
	t.Helper()
	cloud, err := os.MkdirTemp("", "tendril-cloud-") // not of the test's, which only this user may enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(cloud) })
	if err := os.Chmod(cloud, 0o777); err != nil {
		t.Fatal(err)
	}
	tab.Visit(h.Runtime().BrowserURL + "/deploy?cluster=local&template=script-vm&step=configure")
	tab.Wait(`document.querySelector("#fields:not([hidden]) input")`)
	tab.Fill("Workspace", "demo/handout")
	tab.Click("Fill in")
	tab.Click("Paste or load a list into names")
	tab.Fill("One a line, or CSV with a column called name", "ann\nbob")
	tab.Click("Use these")
	tab.Wait(`document.getElementById("v-names[1]")?.value === "bob"`)
	tab.Fill("cloud", cloud)
	tab.Click("Review")
	tab.WaitText("Summary")
	tab.Click("Apply immediately")
	tab.Click("Deploy now")
	tab.Wait(`document.querySelector("#run[data-over]")`)
	if got := newest(t, h, "demo/handout"); got != "apply SUCCESS" {
		t.Fatalf("the run = %s, want an apply that succeeded", got)
	}
	tab.Visit(browsertest.Eval[string](tab, `document.querySelector("h1 a").href + "?tab=machines"`))
	tab.Click("Credentials")
	tab.Wait(`location.pathname.endsWith("/handout")`)
	tab.Click("Show credentials")
	const passwords = `[...document.querySelectorAll(".slip dd")].map((d) => d.textContent).filter((text) => /^[0-9a-f]{24}$/.test(text)).length`
	tab.Wait(`document.querySelectorAll(".slip").length === 2 && ` + passwords + ` === 2`)
	h.seen.page(tab, "handout")
}

// certify does what the page says: it has somebody run the command that is shown, as
// a shell takes it apart, and saves what comes back.
func (h *house) certify(t *testing.T, tab *browsertest.Tab) {
	t.Helper()
	command := browsertest.Eval[string](tab, `document.querySelector("[data-key=certify] code").textContent`)
	out, err := exec.CommandContext(t.Context(), "sh", "-c", `trellis() { for word; do printf '%s\n' "$word"; done; }; `+command).Output()
	if err != nil {
		t.Fatalf("sh -c %s: %v", command, err)
	}
	words := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(words) != 9 || strings.Join(words[:2], " ") != "keys certify" || words[3] != "--name" || words[5] != "--workspaces" || words[7] != "--days" {
		t.Fatalf("the command is %q, want trellis keys certify KEY --name … --workspaces … --days …", words)
	}
	days, err := strconv.Atoi(words[8])
	if err != nil {
		t.Fatal(err)
	}
	from := time.Now().Add(-5 * time.Minute).UTC().Truncate(time.Second)
	certificate, err := h.authority.Certify(trust.Certificate{Recipient: words[2], Name: words[4], Workspaces: []string{words[6]}, From: from, Until: from.AddDate(0, 0, days)})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(certificate)
	if err != nil {
		t.Fatal(err)
	}
	tab.Wait(`(document.getElementById("certificate").value = ` + string(text) + `)`)
	tab.Click("Save the certificate")
	tab.WaitText("for **, ends in 2 months")
}
