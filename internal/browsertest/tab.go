package browsertest

import (
	"context"
	"fmt"
	"strings"
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
