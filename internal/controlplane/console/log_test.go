package console_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/browsertest"
)

// viewer is an expression of the page's log.
const viewer = `document.getElementById("log").viewer`

// logText is what a tab has of the log, as it was printed.
func logText(tab *browsertest.Tab) string {
	return browsertest.Eval[string](tab, `Array.from({length: `+viewer+`.lines.length}, (_, n) => `+viewer+`.lines.texts[n]).join("\n")`)
}

// Lines appear while they are printed; a network that is away in between costs
// none and repeats none; and a tab that is opened again has the same.
func TestLogIsWholeWhateverTheNetworkDoes(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	r := s.begin(t, "acme/prod")
	r.reaches(t, provision.StageCheckout)
	r.prints(t, provision.Stdout, "first\nsec")
	tab := s.enter(t, "viewer")
	tab.Visit(s.wire.URL() + r.path())
	tab.Wait(viewer + `.state === "live"`)

	var took []time.Duration // from being printed to being shown
	shown := func(text, last string) {
		printed := time.Now()
		r.prints(t, provision.Stdout, text)
		tab.WaitText(last)
		took = append(took, time.Since(printed).Round(time.Millisecond))
	}
	shown("ond\nthird\n", "third")

	s.wire.Sever(true)
	tab.Wait(viewer + `.state === "reconnecting"`)
	tab.WaitText("Reconnecting")
	for i := range 40 {
		r.prints(t, provision.Stdout, fmt.Sprintf("while away %d\n", i))
	}
	s.wire.Sever(false)
	tab.Wait(viewer + `.state === "live"`)
	shown("afterwards\n", "afterwards")
	t.Logf("lines are shown %v after they were printed", took)
	if slices.Min(took) > 5*time.Second { // a second on a machine of its own
		t.Errorf("lines were shown %v after they were printed, want a second or so", took)
	}
	// Whoever scrolls up is let alone, and told what is new.
	browsertest.Eval[bool](tab, `(document.querySelector(".log-scroll").scrollTop = 0, true)`)
	tab.Wait(`!` + viewer + `.view.following`)
	r.prints(t, provision.Stdout, "new\nnew\n")
	tab.WaitText("Jump to latest ↓ 2 new")
	if at := browsertest.Eval[float64](tab, `document.querySelector(".log-scroll").scrollTop`); at != 0 {
		t.Errorf("the log of who has scrolled up is at %v, want 0", at)
	}
	tab.Click("Jump to latest")
	tab.Wait(viewer + `.view.following && ` + viewer + `.view.end - document.querySelector(".log-scroll").scrollTop < 2`)
	// And when nothing waits for it.
	s.wire.Sever(true)
	s.wire.Sever(false)
	r.prints(t, provision.System, "Done.\n")
	r.reaches(t, provision.StagePlan)
	r.reports(t, provision.Success, provision.Detail{})
	tab.WaitText("Done.")
	tab.WaitText("Succeeded")
	want := strings.TrimSuffix(s.Log(t, r.id), "\n")
	if got := logText(tab); got != want {
		t.Errorf("the log in the tab =\n%s\nwant\n%s", got, want)
	}
	tab.Wait(viewer + `.state === ""`)
	tab.Visit("about:blank")
	tab.Visit(s.wire.URL() + r.path() + "#L3-L4")
	tab.Wait(`document.querySelectorAll(".log-selected").length === 2`)
	if got := logText(tab); got != want {
		t.Errorf("the log in the tab, opened again =\n%s\nwant\n%s", got, want)
	}
	if r := browsertest.Eval[string](tab, `[...document.querySelectorAll(".log-selected .log-text")].map((e) => e.textContent).join()`); r != "third,while away 0" {
		t.Errorf("the lines that the address names = %q, want the third and the fourth", r)
	}
	tab.Allow("net::ERR_|htmx:") // while it was away
}

// Where a proxy keeps streams back, the log is asked for.
func TestLogWithoutAStream(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	r := s.begin(t, "acme/prod")
	r.prints(t, provision.Stdout, "first\n")
	tab := s.enter(t, "viewer")
	tab.Visit(s.wire.URL() + r.path())
	tab.Wait(viewer + `.state === "live"`)
	// From now on fetch of a stream hangs without a byte, as behind such a proxy.
	browsertest.Eval[bool](tab, `(async () => {
		const {patience} = await import(document.querySelector("script[src*='log/viewer.js']").src.replace("viewer.js", "source.js"));
		patience.first = 100; patience.poll = 100;
		const real = window.fetch;
		window.fetch = (url, o) => String(url).includes("/stream") ? new Promise((_, no) => o.signal.addEventListener("abort", () => no(new Error("aborted")))) : real(url, o);
		return true;
	})()`)
	s.wire.Sever(true)
	s.wire.Sever(false)
	tab.WaitText("polling every 2 seconds")
	r.prints(t, provision.Stdout, "second\n")
	tab.WaitText("second")
	r.reaches(t, provision.StageCheckout)
	r.reports(t, provision.Success, provision.Detail{})
	tab.Wait(viewer + `.state === ""`)
	if got, want := logText(tab), "first\nsecond"; got != want {
		t.Errorf("the log = %q, want %q", got, want)
	}
	tab.Allow("net::ERR_|htmx:")
}

// What a template prints is text and nothing else.
func TestHostileLog(t *testing.T) {
	t.Parallel()
	lines := []struct{ printed, shown string }{
		{`<script>window.hacked = 1</script>`, `<script>window.hacked = 1</script>`},
		{`<img src=x onerror="window.hacked = 2">`, `<img src=x onerror="window.hacked = 2">`},
		{`"><svg onload=alert(3)> {{.}} ${alert(1)} &lt;b&gt; &#x3c;`, `"><svg onload=alert(3)> {{.}} ${alert(1)} &lt;b&gt; &#x3c;`},
		{"\x1b]8;;javascript:window.hacked=4\x1b\\click me\x1b]8;;\x1b\\", "click me"},
		{"\x1b]0;title\x07\x1b[2J\x1b[1;1Hcleared?\x1b[?1049h", "cleared?"},
		{"\x1b[30;40mblack on black\x1b[8m concealed\x1b[0m", "black on black concealed"},
		{"\x1b[38;2;255;255;255;48;2;255;255;255mwhite\x1b[m", "white"},
		{"\x1b[31", "␛[31"},
		{"bell\x07 back\x08space \u009b31m", "bell␇ back␈space U+009B31m"},
		{"invoice\u202efdp.exe \u2066x\u2069 a\u200bb", "invoiceU+202Efdp.exe U+2066xU+2069 aU+200Bb"},
		{"שלום מנהל 123", "שלום מנהל 123"},
		{"rm -rf /\rall is well", "1×all is well"},
		{"Z̴̡̛͍̰̊̂a̸l̷g̶o̵", "Z̴̡̛͍̰̊̂a̸l̷g̶o̵"},
		{strings.Repeat("M", 1<<20), strings.Repeat("M", 4096) + "… 1044k characters more: show more"},
		{"end", "end"},
	}
	var all strings.Builder
	for _, l := range lines {
		all.WriteString(l.printed + "\n")
	}
	s := newScene(t)
	r := s.begin(t, "a")
	r.reaches(t, provision.StageCheckout)
	r.prints(t, provision.Stdout, all.String())
	// What else of a template's gets onto the page.
	bad := "<script>window.hacked = 5</script>\u202e"
	value, _ := json.Marshal(bad) // a string can be
	r.reports(t, provision.Processing, provision.Detail{Plan: &provision.PlanSummary{Add: 1, Resources: []provision.PlannedChange{
		{Address: `x["` + bad + `"]`, Action: "create", Attributes: []provision.AttributeChange{{Path: bad, After: value}}}}}})
	r.reports(t, provision.Failed, provision.Detail{ErrorCode: provision.CodeApplyFailed, ErrorMessage: bad, Outputs: map[string]provision.Output{"o": {Value: value}},
		Resources: []provision.Resource{{Address: bad, Type: bad, ExternalID: bad}}})

	tab := s.enter(t, "viewer")
	tab.Visit(s.wire.URL() + r.path())
	waitLines(tab, len(lines))
	tab.Click("Plan")
	tab.Wait(`document.querySelectorAll(".log-row").length >= ` + fmt.Sprint(len(lines)))
	shown := browsertest.Eval[[]string](tab, `[...document.querySelectorAll(".log-row .log-text")].map((e) => e.textContent)`)
	for i, l := range lines {
		if shown[i] != l.shown {
			t.Errorf("%.60q is shown as %.90q, want %.90q", l.printed, shown[i], l.shown)
		}
	}
	tab.Click("… 1044k")
	tab.Wait(`document.querySelector('[data-line="14"] .log-text')?.textContent.length > 32000`)
	tab.Click("1×")
	tab.WaitText("rm -rf /␍all is well")
	tab.Click("Wrap") // where the browser has to lay out all of it
	tab.Wait(`document.querySelector('[data-line="14"]')?.offsetHeight > 1000`)
	for what, expression := range map[string]string{
		"a script of the log ran":                `window.hacked !== undefined`,
		"the log made an element of its own":     `document.querySelector("#log .log-space :is(script, img, svg, b)") !== null || document.querySelector("main script") !== null`,
		"the log made a link of its own":         `[...document.querySelectorAll("#log .log-space a")].some((a) => !a.getAttribute("href").startsWith("#L"))`,
		"a bidi control got onto the page":       `/[\u202a-\u202e\u2066-\u2069]/.test(document.body.innerText)`,
		"text has the colour of its background":  `[...document.querySelectorAll(".log-text span")].some((e) => getComputedStyle(e).color === getComputedStyle(e).backgroundColor)`,
		"the page's title is not its own":        `!document.title.startsWith("#")`,
		"a row is higher than it was told to be": `[...document.querySelectorAll(".log-row")].some((e) => e.scrollHeight > e.offsetHeight + 1 && getComputedStyle(e.firstChild).overflow === "visible")`,
	} {
		if browsertest.Eval[bool](tab, expression) {
			t.Error(what)
		}
	}
}
