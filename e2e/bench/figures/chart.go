package main

import (
	"embed"
	"fmt"
	"strconv"
	"strings"
	"text/template"
)

// Charts are drawn 560 wide with text of 16: on a phone, where a page leaves
// about 360, that is still read. They bring their own ground, for what is around
// them may be light or dark whatever the reader's system prefers.
const (
	chartWidth = 560
	margin     = 20
)

//go:embed chart.svg.tmpl deploys.svg.tmpl lines.svg.tmpl
var drawings embed.FS

// frame is what the charts have in common.
type frame struct {
	Title, Description string
	Width, Height      int
}

func (f frame) InnerWidth() int  { return f.Width - 2 }
func (f frame) InnerHeight() int { return f.Height - 2 }

// draw fills a drawing. Numbers become coordinates by {{c}}, texts are escaped
// by {{html}}.
func draw(name string, data any) (string, error) {
	t, err := template.New(name).Funcs(template.FuncMap{
		"c":   func(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) },
		"neg": func(v float64) float64 { return -v },
		"add": func(a, b float64) float64 { return a + b },
	}).ParseFS(drawings, "chart.svg.tmpl", name)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	if err := t.Execute(&b, data); err != nil {
		return "", err
	}
	return b.String(), nil
}

// lacking says what a chart cannot be drawn without.
func lacking(bench string) error {
	return fmt.Errorf("no %s in this run; run all benchmarks, or leave out -write", bench)
}

// mark is a value on an axis, with its text.
type mark struct {
	At   float64
	Text string
}
