package browsertest

import (
	"fmt"
	"os"
	"strings"

	"github.com/tendril-run/tendril/internal/pgtest"
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
