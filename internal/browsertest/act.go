package browsertest

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/chromedp/chromedp"
)

// find is an expression for what a person sees under a name: of those that
// match, the one that is visible. What is disabled or covered is not ready, nor is
// a page that still loads: its scripts do not listen yet.
const find = `((name, selector) => {
	if (document.readyState !== "complete") return {why: "the page still loads"};
	const clean = (text) => (text || "").replace(/\s+/g, " ").trim();
	const named = (e) => {
		const by = (e.getAttribute("aria-labelledby") || "").split(" ").map((id) => document.getElementById(id)?.textContent || "").join(" ");
		return [e.getAttribute("aria-label"), by, ...[...(e.labels || [])].flatMap((l) => [l.textContent, l.firstChild?.textContent, l.querySelector("span,.label")?.textContent]),
			e.matches("input[type=submit],input[type=button]") ? e.value : "",
			e.matches("input,select,textarea") ? e.placeholder : e.innerText, e.name].map(clean);
	};
	const modal = [...document.querySelectorAll("dialog:modal")].pop();
	const all = [...(modal || document).querySelectorAll(selector)].filter((e) => e.checkVisibility({visibilityProperty: true}));
	const found = all.find((e) => named(e).includes(name)) || all.find((e) => named(e).some((n) => n.startsWith(name)));
	if (!found) return {why: "there is none among: " + all.map((e) => named(e).find(Boolean)).filter(Boolean).slice(0, 40).join(" | ")};
	if (found.disabled || found.getAttribute("aria-disabled") === "true") return {why: "it is disabled"};
	found.scrollIntoView({block: "center", inline: "center", behavior: "instant"});
	const box = found.getBoundingClientRect();
	const x = box.x + box.width / 2, y = box.y + box.height / 2;
	const top = document.elementFromPoint(x, y);
	if (!top || !(found.contains(top) || top.contains(found) || [...(found.labels || [])].some((l) => l.contains(top)))) {
		return {why: "it is covered by <" + (top ? top.tagName.toLowerCase() + " class=" + top.className : "nothing") + ">"};
	}
	return {found, x, y};
})`

const (
	clickable = `button,a[href],summary,[role=button],[role=tab],[role=menuitem],input[type=submit],input[type=button],input[type=checkbox],input[type=radio],label`
	fillable  = `input:not([type=hidden]),textarea,select`
)

// place is where something is on the screen.
type place struct {
	X, Y float64
	Why  string
}

func quoted(text string) string {
	b, _ := json.Marshal(text) // a string always can
	return string(b)
}

// Click clicks, with the mouse, on the button, link or the like of that name as
// soon as it is there, can be seen and is not disabled.
func (tab *Tab) Click(name string) {
	tab.t.Helper()
	at := tab.locate(name, clickable)
	tab.do("click "+name, chromedp.MouseClickXY(at.X, at.Y))
}

// Fill types into the field of that label what it is to hold, or chooses the
// option of that text.
func (tab *Tab) Fill(label, value string) {
	tab.t.Helper()
	tab.locate(label, fillable)
	isSelect := get[bool](tab, "fill in "+label, fmt.Sprintf(`(() => {
		const e = %s(%s, %s).found;
		e.focus();
		if (!e.matches("select")) { e.select(); return false; }
		const option = [...e.options].find((o) => o.text.trim() === %[4]s || o.value === %[4]s);
		if (!option) throw new Error("no option of: " + [...e.options].map((o) => o.text.trim()).join(" | "));
		e.value = option.value;
		e.dispatchEvent(new Event("input", {bubbles: true}));
		e.dispatchEvent(new Event("change", {bubbles: true}));
		return true;
	})()`, find, quoted(label), quoted(fillable), quoted(value)))
	if isSelect {
		return
	}
	if value == "" {
		tab.do("empty "+label, chromedp.KeyEvent("\b"))
		return
	}
	tab.do("fill in "+label, chromedp.KeyEvent(value))
}

// Press presses keys, such as kb.Tab of chromedp, wherever the focus is.
func (tab *Tab) Press(keys string) {
	tab.t.Helper()
	tab.do("press a key", chromedp.KeyEvent(keys))
}

// locate waits until what has that name can be used, and holds still.
func (tab *Tab) locate(name, selector string) place {
	tab.t.Helper()
	var last place
	tab.until(func() (string, bool) {
		at, there := poll[place](tab, "find "+name, fmt.Sprintf(`(() => { const {x, y, why} = %s(%s, %s); return {x, y, why}; })()`, find, quoted(name), quoted(selector)))
		still := there && at.Why == "" && at == last
		last = at
		return fmt.Sprintf("%q cannot be used: %s", name, at.Why), still
	})
	return last
}

// Wait waits until a JavaScript expression is true.
func (tab *Tab) Wait(expression string) {
	tab.t.Helper()
	tab.until(func() (string, bool) {
		holds, _ := poll[bool](tab, "wait for "+expression, "Boolean("+expression+")")
		return "waited in vain for " + expression, holds
	})
}

// WaitText waits until the page shows a text, however it is wrapped.
func (tab *Tab) WaitText(text string) {
	tab.t.Helper()
	tab.until(func() (string, bool) {
		shown, _ := poll[bool](tab, "wait for "+text, fmt.Sprintf(`(document.body?.innerText || "").replace(/\s+/g, " ").includes(%s)`, quoted(text)))
		return fmt.Sprintf("waited in vain for the text %q", text), shown
	})
}

// until looks again and again until a condition holds.
func (tab *Tab) until(condition func() (missing string, holds bool)) {
	tab.t.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		missing, holds := condition()
		if holds {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			tab.t.Fatalf("%s; the page %s shows:\n%s", missing, tab.URL(), tab.Text())
		case <-tab.t.Context().Done():
			tab.t.Fatal("the test has ended")
		}
	}
}

// Text is what the page shows.
func (tab *Tab) Text() string {
	tab.t.Helper()
	return get[string](tab, "read the page", `document.body?.innerText || ""`)
}

// URL is where the tab is.
func (tab *Tab) URL() string {
	tab.t.Helper()
	return get[string](tab, "ask for the URL", "location.href")
}

// Eval decodes the value of a JavaScript expression, awaited where it is a
// promise. The page's policy does not apply to it.
func Eval[T any](tab *Tab, expression string) T {
	tab.t.Helper()
	return get[T](tab, expression, expression)
}
