package console_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/browsertest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

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
	slow := float64(patience.For(100 * time.Millisecond).Milliseconds()) // a sixtieth of a second, where nothing else runs
	for _, wrap := range []string{"unwrapped", "wrapped"} {
		if wrap == "wrapped" {
			tab.Click("Wrap")
		}
		const scroll = `new Promise((done) => {
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
		})`
		frames := browsertest.Eval[map[string]float64](tab, scroll)
		for again := 0; frames["p50"] > slow && again < 5; again++ { // something else may run
			frames = browsertest.Eval[map[string]float64](tab, scroll)
		}
		t.Logf("%s: frames p50 %.1f ms, p95 %.1f ms, worst %.1f ms; at most %.0f rows drawn", wrap, frames["p50"], frames["p95"], frames["worst"], frames["rows"])
		if frames["rows"] > 150 || frames["rows"] < 20 || frames["end"] < -2 {
			t.Errorf("%s: at most %.0f rows are drawn, and the end is %.0f px away, want those in sight and the end", wrap, frames["rows"], -frames["end"])
		}
		if frames["p50"] > slow {
			t.Errorf("%s: half of all frames take longer than %.0f ms, want what does not grow with the log", wrap, frames["p50"])
		}
		tab.Wait(`document.querySelector('[data-line="200000"]')`)
	}
	tallLog(t, tab, rows*perRow)
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
	fullScreen(tab)
}

// tallLog looks at the log of so many lines in a window so narrow that it is taller
// than a browser can be: what is drawn is then what the scroll bar's place stands
// for, from one end to the other, and by pages no line is passed over.
func tallLog(t *testing.T, tab *browsertest.Tab, count float64) {
	t.Helper()
	desktop := browsertest.Looks()[0]
	tab.Look(browsertest.Look{Width: 240, Height: desktop.Height})
	tab.Wait(viewer + `.view.scale > 1.1`)
	if tall := browsertest.Eval[float64](tab, `document.querySelector(".log-space").offsetHeight`); tall > 8_000_000 {
		t.Errorf("the log is %.0f px tall, want no more than browsers have room for", tall)
	}
	insight := func() (lines []float64) { // by number, those that are wholly or partly in sight
		return browsertest.Eval[[]float64](tab, `new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => {
			const view = document.querySelector(".log-scroll").getBoundingClientRect();
			done([...document.querySelectorAll(".log-row")].map((e) => [Number(e.dataset.line), e.getBoundingClientRect()])
				.filter(([, r]) => r.bottom > view.top + 1 && r.top < view.bottom - 1).map(([n]) => n));
		})))`)
	}
	for _, part := range []float64{0, 0.25, 0.5, 1} {
		browsertest.Eval[bool](tab, fmt.Sprintf(`(document.querySelector(".log-scroll").scrollTop = %v * %s.view.end, true)`, part, viewer))
		lines := insight()
		if want := part * count; len(lines) < 3 || max(want-lines[0], lines[0]-want) > count/100 {
			t.Errorf("at %v of the scroll bar the lines %v are in sight, want those about %.0f", part, lines, want)
		}
		if last := lines[len(lines)-1]; part == 1 && last != count {
			t.Errorf("at the end line %.0f is the last in sight, want %.0f", last, count)
		}
	}
	browsertest.Eval[bool](tab, `(document.querySelector(".log-scroll").focus(), true)`)
	tab.Press("g")
	for range 3 {
		before := insight()
		tab.Press(kb.PageDown)
		after := insight()
		if after[0] <= before[0] || after[0] > before[len(before)-1] {
			t.Errorf("after a page down from lines %v the lines %v are in sight, want the next ones", before, after)
		}
	}
	tab.Look(desktop)
}

// The log may have the screen; where the browser does not let it, the window.
func fullScreen(tab *browsertest.Tab) {
	const filled = `document.querySelector("[data-log=full]").getAttribute("aria-pressed") === "true" &&
		document.querySelector(".log-scroll").clientHeight > innerHeight - 200 && document.querySelectorAll(".log-row").length > 20`
	tab.Click("Full screen")
	tab.Wait(`document.fullscreenElement?.id === "log" && ` + filled)
	tab.Click("Full screen")
	tab.Wait(`document.fullscreenElement === null && !(` + filled + `)`)
	browsertest.Eval[bool](tab, `(Element.prototype.requestFullscreen = () => Promise.reject(new Error("not allowed")), true)`)
	tab.Click("Full screen")
	tab.Wait(filled)
	tab.Press(kb.Escape)
	tab.Wait(`!(` + filled + `)`)
}
