package browsertest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// limit bounds each step of a test. A page of ours takes milliseconds; a
// machine that many test processes share may take very many seconds.
const limit = 2 * time.Minute

// Tab is a page that is open. Its methods fail the test when they cannot do
// what is asked within a time limit.
type Tab struct {
	t     testing.TB
	ctx   context.Context
	look  Look
	seen  *problems
	found map[string]bool // what Axe has said already
}

// Look is how a page is looked at.
type Look struct {
	Dark          bool
	Width, Height int64
}

// Option says how a tab differs from a light one on a desktop.
type Option func(*Look)

// Dark prefers the dark theme.
func Dark(l *Look) { l.Dark = true }

// Phone is a phone held upright.
func Phone(l *Look) { l.Width, l.Height = 380, 800 }

// Open opens a page in a tab of its own, without cookies, and waits until it has
// loaded. The tab is closed when the test is over; what went wrong in it until
// then fails the test.
func Open(t testing.TB, url string, options ...Option) *Tab {
	t.Helper()
	tab := New(t, options...)
	tab.Visit(url)
	return tab
}

// New opens an empty tab.
func New(t testing.TB, options ...Option) *Tab {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: no browser")
	}
	return open(t, chromedp.WithNewBrowserContext(), options)
}

// Another opens an empty tab beside this one, which has the same cookies.
func (tab *Tab) Another(options ...Option) *Tab {
	tab.t.Helper()
	return open(tab.t, chromedp.WithExistingBrowserContext(chromedp.FromContext(tab.ctx).BrowserContextID), options)
}

func open(t testing.TB, kind chromedp.ContextOption, options []Option) *Tab {
	t.Helper()
	tab := &Tab{t: t, seen: &problems{}, look: Look{Width: 1280, Height: 800}, found: map[string]bool{}}
	for _, option := range options {
		option(&tab.look)
	}
	ctx, cancel := chromedp.NewContext(shared.get(t), kind, chromedp.WithListener(tab.seen.hear))
	tab.ctx = ctx
	t.Cleanup(func() {
		if t.Failed() {
			tab.keepFailure()
		}
		cancel()
		for _, problem := range tab.seen.all() {
			t.Errorf("the page: %s", problem)
		}
	})
	if err := chromedp.Do(ctx); err != nil { // bound to the tab's life, not to a time limit
		t.Fatalf("open a tab: %v", err)
	}
	tab.Look(tab.look)
	return tab
}

// Look changes how the page is looked at, as it is.
func (tab *Tab) Look(l Look) {
	tab.t.Helper()
	tab.look = l
	scheme := "light"
	if l.Dark {
		scheme = "dark"
	}
	tab.do("look at the page", chromedp.EmulateViewport(l.Width, l.Height), chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		// Movement is asked away, for what moves has no one colour to measure.
		_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
			{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
		}})
		return err
	}))
}

// Looks are a page's two themes on a desktop, and one of each on a phone.
func Looks() []Look {
	return []Look{{false, 1280, 800}, {true, 1280, 800}, {false, 380, 800}, {true, 380, 800}}
}

func (l Look) String() string {
	theme := "light"
	if l.Dark {
		theme = "dark"
	}
	return fmt.Sprintf("%s-%d", theme, l.Width)
}

// Visit goes to a URL and waits until the page has loaded.
func (tab *Tab) Visit(url string) {
	tab.t.Helper()
	tab.do("open "+url, chromedp.Navigate(url))
}

// Offline has the tab's requests fail, and lets them on again. A stream that is
// open already goes on: to cut one, stand between browser and server. What fails
// meanwhile is to be allowed by the test that does this.
func (tab *Tab) Offline(off bool) {
	tab.t.Helper()
	tab.do("cut the network", chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		return target.Call(ctx, "Network.emulateNetworkConditions",
			map[string]any{"offline": off, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}, nil)
	}))
}

// Context is the tab's, for actions of package chromedp that Tab does not have.
func (tab *Tab) Context() context.Context { return tab.ctx }

// do does what is asked of the browser.
func (tab *Tab) do(what string, actions ...chromedp.Action[chromedp.Void]) {
	tab.t.Helper()
	ctx, cancel := patience.Context(tab.ctx, limit)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		tab.t.Fatalf("%s: %v", what, err)
	}
}

// get asks the page for a value.
func get[T any](tab *Tab, what, expression string) T {
	tab.t.Helper()
	v, err := ask[T](tab, expression)
	if err != nil {
		tab.t.Fatalf("%s: %v", what, err)
	}
	return v
}

// poll is get for what is asked again and again: false where the page went away
// for another one while it was asked.
func poll[T any](tab *Tab, what, expression string) (v T, there bool) {
	tab.t.Helper()
	v, err := ask[T](tab, expression)
	if err != nil && left(err) {
		return v, false
	}
	if err != nil {
		tab.t.Fatalf("%s: %v", what, err)
	}
	return v, true
}

func ask[T any](tab *Tab, expression string) (T, error) {
	ctx, cancel := patience.Context(tab.ctx, limit)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// left reports whether a page could not answer because it has been left.
func left(err error) bool {
	for _, words := range []string{"Inspected target navigated or closed", "Execution context was destroyed", "Cannot find context"} {
		if strings.Contains(err.Error(), words) {
			return true
		}
	}
	return false
}

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

// Wait waits until a JavaScript expression is true, awaited where it is a promise.
func (tab *Tab) Wait(expression string) {
	tab.t.Helper()
	tab.until(func() (string, bool) {
		holds, _ := poll[bool](tab, "wait for "+expression, "Promise.resolve("+expression+").then(Boolean)")
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

// until looks again and again until a condition holds, and does what a reader
// would where the page came without its scripts: it reloads.
func (tab *Tab) until(condition func() (missing string, holds bool)) {
	tab.t.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if tab.seen.takePartial() {
			tab.do("reload the page", chromedp.Reload())
		}
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

// Wire is a network between browsers and a site: a TCP proxy that can be cut.
type Wire struct {
	listener net.Listener
	to       string
	mu       sync.Mutex
	cut      bool
	open     map[net.Conn]struct{}
	running  sync.WaitGroup
}

// NewWire begins at an address of its own and leads to another one, until the test
// is over.
func NewWire(t testing.TB, to string) *Wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &Wire{listener: l, to: to, open: map[net.Conn]struct{}{}}
	w.running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			w.running.Go(func() { w.carry(conn) })
		}
	})
	t.Cleanup(w.Close)
	return w
}

// URL is where the wire begins.
func (w *Wire) URL() string { return "http://" + w.listener.Addr().String() }

// carry brings bytes both ways until either side ends or the wire is cut.
func (w *Wire) carry(in net.Conn) {
	defer in.Close() //nolint:errcheck // whatever becomes of it
	out, err := net.Dial("tcp", w.to)
	if err != nil {
		return
	}
	defer out.Close() //nolint:errcheck // likewise
	if !w.holds(in, out) {
		return
	}
	defer w.drops(in, out)
	var ways sync.WaitGroup
	for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
		ways.Go(func() {
			_, _ = io.Copy(way[0], way[1]) // either end may go at any time
			_ = in.Close()
			_ = out.Close()
		})
	}
	ways.Wait()
}

func (w *Wire) holds(conns ...net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		return false
	}
	for _, c := range conns {
		w.open[c] = struct{}{}
	}
	return true
}

func (w *Wire) drops(conns ...net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range conns {
		delete(w.open, c)
	}
}

// Sever ends all connections, and lets none through until mended.
func (w *Wire) Sever(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
	for c := range w.open {
		if cut {
			_ = c.Close() // that is the point
		}
	}
}

// Close ends it before the test is over.
func (w *Wire) Close() {
	_ = w.listener.Close()
	w.Sever(true)
	w.running.Wait()
}
