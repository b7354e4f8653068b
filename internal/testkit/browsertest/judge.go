package browsertest

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// violation is a rule of axe-core that a page breaks.
type violation struct {
	ID, Impact, Help string
	Nodes            []struct {
		Target         []any
		FailureSummary string
		HTML           string
	}
}

// Axe fails the test for each fault of accessibility that axe-core finds and
// calls serious or critical, as the page is now; of a dark one only those of
// colours. What it has said of this tab it does not say again.
func (tab *Tab) Axe() {
	tab.t.Helper()
	for _, fault := range tab.faults() {
		if !tab.found[fault] {
			tab.found[fault] = true
			tab.t.Errorf("%s, %s: %s", tab.URL(), tab.look, fault)
		}
	}
}

// rules are those to ask: in the dark what colours change, the rest was asked in
// the light.
func (tab *Tab) rules() string {
	if tab.look.Dark {
		return `{runOnly: ["color-contrast", "link-in-text-block"]}`
	}
	return "{}"
}

func (tab *Tab) faults() (faults []string) {
	tab.t.Helper()
	source, err := os.ReadFile(pgtest.Tool(tab.t, "axe-core/node_modules/axe-core/axe.min.js"))
	if err != nil {
		tab.t.Fatal(err)
	}
	// Over the debugger's protocol, to which the page's policy does not apply.
	get[bool](tab, "load axe-core", `typeof axe !== "undefined" || (() => {`+string(source)+`; return true })()`)
	violations := get[[]violation](tab, "ask axe-core", `axe.run(document, {resultTypes: ["violations"], ...`+tab.rules()+`}).then((r) => r.violations
		.filter((v) => v.impact === "serious" || v.impact === "critical")
		.map(({id, impact, help, nodes}) => ({id, impact, help, nodes: nodes.map(({target, failureSummary, html}) => ({target, failureSummary, html}))})))`)
	for _, v := range violations {
		for _, node := range v.Nodes {
			faults = append(faults, fmt.Sprintf("%s (%s): %s: at %v: %s\n%s", v.ID, v.Impact, v.Help, node.Target, strings.ReplaceAll(node.FailureSummary, "\n", " "), clip(node.HTML)))
		}
	}
	return faults
}

// NoOverflow fails the test when the page is wider than its window, and names
// what sticks out.
func (tab *Tab) NoOverflow() {
	tab.t.Helper()
	if wide := tab.overflow(); len(wide) > 0 {
		tab.t.Errorf("%s, %s, scrolls sideways: %s", tab.URL(), tab.look, strings.Join(wide, "; "))
	}
}

func (tab *Tab) overflow() []string {
	tab.t.Helper()
	return get[[]string](tab, "measure the page", `(() => {
		const width = document.documentElement.clientWidth;
		if (document.documentElement.scrollWidth <= width) return [];
		return [...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > width + 1 && e.checkVisibility()
				&& ![...e.children].some((c) => c.getBoundingClientRect().right > width + 1))
			.slice(0, 10).map((e) => e.tagName.toLowerCase() + (e.className ? "." + e.className : "") + " to " + Math.round(e.getBoundingClientRect().right))
			.concat("the page is " + document.documentElement.scrollWidth + " wide, its window " + width);
	})()`)
}

func clip(text string) string {
	if len(text) > 300 {
		return text[:300] + "…"
	}
	return text
}

// problems is what goes wrong in a tab and no person would see.
type problems struct {
	mu      sync.Mutex
	texts   []string
	allowed []*regexp.Regexp
	sent    map[network.RequestID]sent
	partial bool // a script or a style sheet has not come: the network changed meanwhile
}

// sent is a request that a page has made of its own server.
type sent struct{ method, url string }

// hear is called for each event, in their order.
func (p *problems) hear(event any) {
	switch e := event.(type) {
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeAssert {
			p.add("the console says an error: " + argumentsText(e.Args))
		}
	case *runtime.EventExceptionThrown:
		p.add("nobody caught: " + exceptionText(e.ExceptionDetails))
	case *log.EventEntryAdded:
		// Failed requests are told of below, with their method and status.
		if e.Entry.Level == log.EntryLevelError && e.Entry.Source != log.EntrySourceNetwork {
			p.add(fmt.Sprintf("%s: %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL))
		}
	case *network.EventRequestWillBeSent:
		p.remember(e)
	case *network.EventResponseReceived:
		if s, own := p.request(e.RequestID); own && e.Response.Status >= 400 {
			p.add(fmt.Sprintf("%s %s answers %d", s.method, s.url, e.Response.Status))
		}
	case *network.EventLoadingFailed:
		// What is cancelled was going on when the page was left. The network changes while
		// containers of other tests come and go: a page has to ask again, and nobody but its
		// reader does that for its scripts.
		changed := e.ErrorText == "net::ERR_NETWORK_CHANGED"
		if changed && (e.Type == network.ResourceTypeScript || e.Type == network.ResourceTypeStylesheet) {
			p.mu.Lock()
			p.partial = true
			p.mu.Unlock()
		}
		passing := changed || e.Canceled || e.ErrorText == "net::ERR_ABORTED"
		if s, own := p.request(e.RequestID); own && !passing {
			p.add(fmt.Sprintf("%s %s fails: %s %s", s.method, s.url, e.ErrorText, e.BlockedReason))
		}
	}
}

func (p *problems) remember(e *network.EventRequestWillBeSent) {
	page, errPage := url.Parse(e.DocumentURL)
	request, errRequest := url.Parse(e.Request.URL)
	if errPage != nil || errRequest != nil || page.Host != request.Host {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sent == nil {
		p.sent = map[network.RequestID]sent{}
	}
	p.sent[e.RequestID] = sent{e.Request.Method, e.Request.URL}
}

func (p *problems) request(id network.RequestID) (sent, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.sent[id]
	return s, ok
}

func (p *problems) add(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.texts = append(p.texts, text)
}

// takePartial reports whether the page lacks a part, once.
func (p *problems) takePartial() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.partial
	p.partial = false
	return was
}

// all are those that are not allowed.
func (p *problems) all() (left []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, text := range p.texts {
		meant := false
		for _, pattern := range p.allowed {
			meant = meant || pattern.MatchString(text)
		}
		if !meant {
			left = append(left, text)
		}
	}
	return left
}

// Allow names what may go wrong in this tab, by regular expressions: say, "404"
// where a page that is not there is looked at.
func (tab *Tab) Allow(patterns ...string) {
	tab.seen.mu.Lock()
	defer tab.seen.mu.Unlock()
	for _, pattern := range patterns {
		tab.seen.allowed = append(tab.seen.allowed, regexp.MustCompile(pattern))
	}
}

// Problems are what went wrong so far and is not allowed.
func (tab *Tab) Problems() []string { return tab.seen.all() }

func argumentsText(args []*runtime.RemoteObject) string {
	var parts []string
	for _, arg := range args {
		parts = append(parts, valueText(arg))
	}
	return strings.Join(parts, " ")
}

func valueText(o *runtime.RemoteObject) string {
	var text string
	if json.Unmarshal(o.Value, &text) == nil {
		return text
	}
	if o.Description != "" {
		return o.Description
	}
	return string(o.Value)
}

func exceptionText(d *runtime.ExceptionDetails) string {
	text := d.Text
	if d.Exception != nil {
		text += " " + valueText(d.Exception)
	}
	return fmt.Sprintf("%s (%s:%d)", text, d.URL, d.LineNumber+1)
}
