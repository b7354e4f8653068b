package browsertest

import (
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"sync"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
)

// problems is what goes wrong in a tab and no person would see.
type problems struct {
	mu      sync.Mutex
	texts   []string
	allowed []*regexp.Regexp
	sent    map[network.RequestID]sent
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
		// What is cancelled was going on when the page was left.
		if s, own := p.request(e.RequestID); own && !e.Canceled && e.ErrorText != "net::ERR_ABORTED" {
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
