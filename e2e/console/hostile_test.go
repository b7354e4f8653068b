package console

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/browsertest"
)

// nasty is what a template may put wherever it may put something.
const nasty = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>\u202e"

// hostileTemplate has a real Terraform print what is to break the page, and put
// it into all that a run reports.
func hostileTemplate(t *testing.T, h *house) {
	lines := []struct{ printed, shown string }{
		{nasty, "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>U+202E"},
		{"\x1b]8;;javascript:window.hacked=3\x1b\\click me\x1b]8;;\x1b\\ \x1b]0;title\x07", "click me"},
		{"\x1b[2J\x1b[1;1H\x1b[?1049hcleared? \x1b[30;40mblack on black\x1b[8m concealed\x1b[0m", "cleared? black on black concealed"},
		{"invoice\u202efdp.exe \u2066x\u2069 a\u200bb \u0627\u0644\u0639", "invoiceU+202Efdp.exe U+2066xU+2069 aU+200Bb \u0627\u0644\u0639"},
		{"rm -rf /\rall is well", "all is well"},
		{"bell\x07 nul\x00 \xff\xfe broken", "broken"},
		{"the end", "the end"},
	}
	// Terraform drops so long a line of a provisioner; one of a plan it prints.
	const kilobyte = 1 << 10
	megabyte := fmt.Sprintf(`join("", [for i in range(%d) : "%s"])`, kilobyte, strings.Repeat("M", kilobyte))
	var print strings.Builder
	for _, l := range lines {
		print.WriteString(l.printed + "\n")
	}
	run := h.deploy(t, h.template(t, "hostile", map[string]string{"print": print.String(), "main.tf": fmt.Sprintf(`
resource "terraform_data" "bad" {
  for_each         = toset([%[1]q])
  input            = %[1]q
  triggers_replace = timestamp()
  provisioner "local-exec" {
    quiet   = true
    command = "cat print"
  }
}
resource "terraform_data" "fails" {
  lifecycle {
    precondition {
      condition     = alltrue([for b in terraform_data.bad : b.id == ""])
      error_message = %[1]q
    }
  }
}
output "bad" { value = %[1]q }
output "long" { value = %[2]s }
`, nasty, megabyte)}), "demo/hostile")
	tab := h.signIn(t, h.Runtime().BrowserURL)
	tab.Visit(h.Runtime().BrowserURL + "/provisions/" + strconv.FormatInt(run.Number, 10))
	tab.Wait(`document.querySelector("#run[data-over]") && ` + logViewer + `.state === ""`)
	tab.WaitText("The apply failed")
	tab.Wait(logViewer + `.lines.texts.some((text) => text.length > 1 << 20)`)
	tab.Click("Wrap") // what is shown of that is laid out
	tab.Wait(`document.querySelectorAll("#log .log-text").length > 0`)
	var shown string
	for ends := 0; ends < 3; { // all of it goes by, and is laid out on the way: the end moves
		shown += browsertest.Eval[string](tab, `[...document.querySelectorAll("#log .log-text")].map((e) => e.textContent).join("\n") + "\n"`)
		if browsertest.Eval[bool](tab, `(() => { const e = document.querySelector("#log .log-scroll"); const end = e.scrollTop + e.clientHeight >= e.scrollHeight - 1; e.scrollTop += e.clientHeight; return end; })()`) {
			ends++
		} else {
			ends = 0
		}
		tab.Wait(`new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))`)
	}
	if want := `"` + strings.Repeat("M", 3000); !strings.Contains(shown, want) {
		t.Error("the beginning of a megabyte on one line is not shown")
	}
	for _, l := range lines {
		if !strings.Contains(shown, l.shown) {
			t.Errorf("%.60q is not shown as %.90q", l.printed, l.shown)
		}
	}
	browsertest.Eval[bool](tab, `[...document.querySelectorAll("main details")].every((d) => (d.open = true))`)
	h.seen.page(tab, "run-hostile")
	for what, expression := range map[string]string{
		"a script of the template ran":     `window.hacked !== undefined`,
		"the template made an element":     `document.querySelector("main :is(script, img, iframe)") !== null`,
		"the template made a link":         `[...document.querySelectorAll("a")].some((a) => a.protocol === "javascript:")`,
		"a bidi control is on the page":    `/[\u202a-\u202e\u2066-\u2069]/.test(document.body.innerText)`,
		"the template named the window":    `!document.title.startsWith("#")`,
		"text is of its background's look": `[...document.querySelectorAll("#log .log-text span")].some((e) => getComputedStyle(e).color === getComputedStyle(e).backgroundColor)`,
	} {
		if browsertest.Eval[bool](tab, expression) {
			t.Error(what)
		}
	}
	for _, part := range []string{"#run .said", "#plan", "#inventory"} {
		if !browsertest.Eval[bool](tab, fmt.Sprintf(`document.querySelector(%q).innerText.includes("<script>")`, part)) {
			t.Errorf("%s does not show what is nasty as it is", part)
		}
	}
	if t.Failed() {
		t.Logf("%s; shown:\n%.5000s", browsertest.Eval[string](tab, `(() => { const v = `+logViewer+`.view, e = v.scroller; return JSON.stringify({following: v.following, wrap: v.wrap, rows: v.layout.total, lines: v.layout.length, height: v.height, columns: v.columns, frame: v.frame, drawn: [...v.drawn.keys()], scrollTop: e.scrollTop, scrollHeight: e.scrollHeight, clientHeight: e.clientHeight, space: v.space.style.height}); })()`), shown)
	}
}
