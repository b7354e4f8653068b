package console_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"github.com/tendril-run/tendril/internal/browsertest"
	"github.com/tendril-run/tendril/internal/provision"
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

	printed := time.Now()
	r.prints(t, provision.Stdout, "ond\nthird\n")
	tab.WaitText("third")
	took := time.Since(printed)
	t.Logf("a line is shown %v after it was printed", took.Round(time.Millisecond))
	if took > 5*time.Second { // a second on a machine of its own
		t.Errorf("a line was shown %v after it was printed, want a second or so", took)
	}

	s.wire.Sever(true)
	tab.Wait(viewer + `.state === "reconnecting"`)
	tab.WaitText("Reconnecting")
	for i := range 40 {
		r.prints(t, provision.Stdout, fmt.Sprintf("while away %d\n", i))
	}
	s.wire.Sever(false)
	tab.Wait(viewer + `.state === "live"`)
	r.prints(t, provision.Stdout, "afterwards\n")
	tab.WaitText("afterwards")
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
	tab.WaitText("asking every 2 seconds")
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

// 200,000 lines: only those in sight are elements, wherever one scrolls to; what is
// looked for is found while the page lives; and all is there after a reload.
func TestLargeLog(t *testing.T) {
	t.Parallel()
	const rows, perRow = 2000, 100
	s := newScene(t)
	r := s.begin(t, "a")
	r.reaches(t, provision.StageCheckout)
	s.Exec(t, `INSERT INTO public.provision_logs (provision_id, seq, org_id, stream_type, log_chunk, emitted_at)
		SELECT $1, g, $2, 'STDOUT', (SELECT string_agg(format(E'%s \x1b[32mterraform_data.ship["%s"]\x1b[0m: Still creating... [%ss elapsed]\n', (g - 1) * $4 + n, n, g), '' ORDER BY n) FROM generate_series(1, $4) n), clock_timestamp()
		FROM generate_series(1, $3::bigint) g`, r.id, s.Org, rows, perRow)
	tab := s.enter(t, "viewer")
	tab.Visit(s.wire.URL() + r.path())
	began := time.Now()
	// It goes on: its end is there before the rest of it.
	tab.Wait(`document.querySelector("[data-log=end-lines]").textContent.includes("200000 terraform_data")`)
	t.Logf("its end is shown after %v", time.Since(began).Round(time.Millisecond))
	waitLines(tab, rows*perRow)
	t.Logf("%d lines are loaded after %v", rows*perRow, time.Since(began).Round(time.Millisecond))
	tab.Wait(`document.querySelector("[data-log=end]").hidden && document.querySelector('[data-line="200000"]')`)
	s.Exec(t, "UPDATE public.provisions SET status = 'CANCELLED', finished_at = now() WHERE id = $1", r.id)
	browsertest.Eval[bool](tab, `dispatchEvent(new Event("online"))`) // the page learns it at once
	tab.Wait(viewer + `.state === ""`)

	// Frames while it is scrolled through from top to bottom, as fast as a hand does.
	for _, wrap := range []string{"unwrapped", "wrapped"} {
		if wrap == "wrapped" {
			tab.Click("Wrap")
		}
		frames := browsertest.Eval[map[string]float64](tab, `new Promise((done) => {
			const view = document.querySelector(".log-scroll"), gaps = [], most = [];
			let last = performance.now(), n = 0;
			view.scrollTop = 0;
			const step = (now) => {
				gaps.push(performance.now() - last);
				last = performance.now();
				most.push(document.querySelectorAll(".log-row").length);
				view.scrollTop += n < 40 ? 47 : n < 60 ? 3000 : view.scrollHeight / 25;
				if (++n < 90) return requestAnimationFrame(step);
				gaps.sort((a, b) => a - b);
				done({p50: gaps[45], p95: gaps[85], worst: gaps[89], rows: Math.max(...most), end: view.scrollTop + view.clientHeight - view.scrollHeight});
			};
			requestAnimationFrame(step);
		})`)
		t.Logf("%s: frames p50 %.1f ms, p95 %.1f ms, worst %.1f ms; at most %.0f rows drawn", wrap, frames["p50"], frames["p95"], frames["worst"], frames["rows"])
		if frames["rows"] > 150 || frames["rows"] < 20 || frames["end"] < -2 {
			t.Errorf("%s: at most %.0f rows are drawn, and the end is %.0f px away, want those in sight and the end", wrap, frames["rows"], -frames["end"])
		}
		if frames["p50"] > 100 { // a sixtieth of a second, where nothing else runs
			t.Errorf("%s: half of all frames take longer than %.0f ms, want what does not grow with the log", wrap, frames["p50"])
		}
		tab.Wait(`document.querySelector('[data-line="200000"]')`)
	}
	tab.Click("Wrap")

	// Where nothing of the log is an element, it can still be found.
	tab.Fill("Search the log", `199777 terraform`)
	tab.Press(kb.Enter) // long before it is found
	tab.Wait(`document.querySelector('[data-line="199777"] .log-current')?.textContent === "199777 "`)
	tab.Fill("Search the log", "elapsed")
	tab.WaitText("100000+ matches")

	tab.Visit("about:blank")
	tab.Visit(s.wire.URL() + r.path() + "#L123456")
	tab.Wait(`document.querySelector('.log-selected .log-text')?.textContent.startsWith("123456 terraform_data")`)
	heap := browsertest.Eval[float64](tab, `performance.memory ? performance.memory.usedJSHeapSize / 1048576 : 0`)
	t.Logf("the tab's heap: %.0f MiB", heap)
}
