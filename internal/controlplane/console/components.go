package console

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

// status is a state as a badge shows it. Its word is in components/status.html.
type status struct {
	Name string
	Said string // instead of its word, such as how many resources drifted
}

// statusLook is how a status is drawn. Its tone chooses the colour; an icon and a
// word come with it, so that nobody has to tell colours apart.
type statusLook struct{ name, icon, tone string }

// statuses are all that pages show.
var statuses = []statusLook{
	// of a run
	{"QUEUED", "waiting", "still"}, {"PROCESSING", "running", "busy"}, {"AWAITING_APPROVAL", "hand", "warn"}, {"AWAITING_INPUT", "hand", "warn"},
	{"SUCCESS", "ok", "good"}, {"FAILED", "failed", "bad"}, {"CANCELLED", "stopped", "still"},
	{"STOPPING", "stopped", "still"}, {"FIXED", "ok", "good"},
	// of a cluster and its agents
	{"ONLINE", "ok", "good"}, {"STALE", "waiting", "warn"}, {"OFFLINE", "failed", "bad"}, {"PAUSED", "pause", "warn"}, {"OUTDATED", "warning", "warn"},
	// of a workspace
	{"RUNNING", "running", "busy"}, {"LOCKED", "lock", "warn"}, {"HELD", "warning", "bad"}, {"RESERVED", "hand", "still"},
	{"DRIFTED", "drift", "warn"}, {"IN_SYNC", "ok", "good"},
	// of a machine
	{"planned", "waiting", "still"}, {"reserved", "waiting", "still"}, {"creating", "running", "busy"}, {"running", "ok", "good"}, {"stopped", "stopped", "still"}, {"failed", "failed", "bad"},
	{"unknown", "warning", "warn"}, {"gone", "stopped", "still"}, {"healthy", "ok", "good"}, {"unhealthy", "failed", "bad"},
	// of a bare-metal server
	{"ok", "ok", "good"}, {"warning", "warning", "warn"}, {"critical", "failed", "bad"},
	// of a pool
	{store.PoolReachable, "ok", "good"}, {store.PoolUnreachable, "failed", "bad"}, {store.PoolStale, "waiting", "warn"},
	// of a token or an invitation
	{"VALID", "ok", "good"}, {"EXPIRING", "waiting", "warn"}, {"EXPIRED", "stopped", "still"}, {"REVOKED", "stopped", "still"}, {"DECLINED", "stopped", "still"},
	// of a webhook and its deliveries
	{"ENABLED", "ok", "good"}, {"DISABLED", "pause", "warn"}, {"SWITCHED_OFF", "failed", "bad"}, {"FAILING", "warning", "warn"},
	{"SENDING", "waiting", "still"}, {"RETRYING", "retry", "warn"}, {"DELIVERED", "ok", "good"}, {"GIVEN_UP", "failed", "bad"},
	// of a template's scan
	{"SCANNING", "running", "busy"}, {"SCAN_FAILED", "failed", "bad"},
}

// statusOf takes a status, or a state as a row has it.
func statusOf(state any) status {
	if s, ok := state.(status); ok {
		return s
	}
	return status{Name: text(state)}
}

// Icon is its sign.
func (s status) Icon() string { return s.look().icon }

// Tone is its colour.
func (s status) Tone() string { return s.look().tone }

// look is how it is drawn, also if a newer agent or database invented it.
func (s status) look() statusLook {
	if i := slices.IndexFunc(statuses, func(l statusLook) bool { return l.name == s.Name }); i >= 0 {
		return statuses[i]
	}
	return statusLook{s.Name, "info", "still"}
}

// notice is a box that says something important: an error, a warning, information or
// a success. Its icon is that of its kind, unless another says more.
type notice struct{ Kind, Icon string }

// noticeOf takes a notice or a kind.
func noticeOf(v any) notice {
	if n, ok := v.(notice); ok {
		return n
	}
	return notice{text(v), text(v)}
}

// flash tells on the next page how an action went. Its words are in
// components/flash.html.
type flash struct {
	Kind string   `json:"k"` // success, info, warning or error
	Said string   `json:"s"` // which of the words
	Args []string `json:"a,omitempty"`
}

// done is a success, with the names that its words need.
func done(said string, args ...string) flash { return flash{"success", said, args} }

// noted is for an action that changed nothing yet, or nothing at all.
func noted(said string, args ...string) flash { return flash{"info", said, args} }

// refused is a refusal in its own words.
func refusedFlash(no *store.RefusedError) flash {
	return flash{"error", "refused", []string{no.Message, no.Hint}}
}

// A and B are the names in its words.
func (f *flash) A() string { return f.arg(0) }

// B is the second one.
func (f *flash) B() string { return f.arg(1) }

func (f *flash) arg(i int) string {
	if i < len(f.Args) {
		return f.Args[i]
	}
	return ""
}

const flashCookie = "trellis_flash"

// redirect answers a form with the page to go to, which tells what was done.
func (c *console) redirect(w http.ResponseWriter, r *request, to string, f flash) {
	if f.Said != "" {
		value, _ := json.Marshal(f) // strings can be
		r.jar.Set(w, r.Request, flashCookie, base64.RawURLEncoding.EncodeToString(value), 60)
	}
	http.Redirect(w, r.Request, to, http.StatusSeeOther)
}

// takeFlash returns what the page before left to tell, once.
func takeFlash(w http.ResponseWriter, r *request) *flash {
	left := r.jar.Get(r.Request, flashCookie)
	if left == "" || r.Header.Get("HX-Request") != "" {
		return nil
	}
	r.jar.Set(w, r.Request, flashCookie, "", -1)
	f := &flash{}
	value, err := base64.RawURLEncoding.DecodeString(left)
	if err != nil || json.Unmarshal(value, f) != nil || f.Said == "" || icons[f.Kind] == "" {
		return nil
	}
	return f
}

// fieldError is what was wrong with a field of a form; no message is nothing.
type fieldError struct{ ID, Message string }

func newFieldError(id, message string) fieldError { return fieldError{id, message} }

// problem is what is wrong with a part of a snapshot.
type problem struct {
	Path    string `json:"path"` // config_snapshot.terraform_vars.x; "" for all of it
	Message string `json:"message"`
}

// empty stands where a page has nothing to show: why, and what to do about it. The
// page gives the words.
type empty struct {
	Icon, Title, Text string
	Href, Action      string // of a button; "" for none
}

func newEmpty(icon, title, text string) empty { return empty{Icon: icon, Title: title, Text: text} }

// Go adds a button that leads somewhere.
func (e empty) Go(href, action string) empty {
	e.Href, e.Action = href, action
	return e
}

// failure is why a run failed or was cancelled.
type failure struct {
	Code, Message string
	// What happened and what to Do about it, as components/failure.html says.
	What, Do string
}

// Says adds the words.
func (f failure) Says(what, do string) failure {
	f.What, f.Do = what, do
	return f
}

// table is a table's head: its name for screen readers, and its columns.
type table struct {
	Label   string
	Columns []column
	Class   string
}

// column is one of a table's. The page gives the title.
type column struct {
	Title  string
	Number bool // aligned as numbers are
	Unseen bool // its title is for screen readers only
}

// newTable takes a column or a title for each column; anything else is no column.
func newTable(label string, columns ...any) table {
	t := table{Label: label, Class: "cards"}
	for _, c := range columns {
		switch c := c.(type) {
		case column:
			t.Columns = append(t.Columns, c)
		case string:
			t.Columns = append(t.Columns, column{Title: c})
		}
	}
	return t
}

// WideFirst gives the first column more room.
func (t table) WideFirst() table {
	t.Class += " wide-first"
	return t
}

// filter narrows a list, by a form that is sent with GET. The page gives the words.
type filter struct {
	Action   string
	Narrowed bool // offers to show all
	Fields   []filterField
	Live     string // what is replaced while a person types; "" for nothing
	Kept     map[string]string
}

// filterField is a search, or a choice from a list.
type filterField struct {
	Name, Value, Label string
	Hint               string // of a search
	All                string // of a choice: what chooses nothing
	Choices            []filterChoice
	Search             bool
}

// filterChoice is one of a list's. Its word is components/filter.html's.
type filterChoice struct {
	Field, Value string
	Chosen       bool
}

func newFilter(action string, narrowed bool, fields ...filterField) filter {
	return filter{Action: action, Narrowed: narrowed, Fields: fields, Kept: map[string]string{}}
}

// Replaces has the list replaced while a person types.
func (f filter) Replaces(target string) filter {
	f.Live = target
	return f
}

// Keep sends what was chosen elsewhere along.
func (f filter) Keep(kept map[string]string) filter {
	f.Kept = maps.Clone(f.Kept)
	for name, value := range kept {
		if value != "" {
			f.Kept[name] = value
		}
	}
	return f
}

// filterSearch is a field for words.
func filterSearch(value, label, hint string) filterField {
	return filterField{Name: "q", Search: true, Value: value, Label: label, Hint: hint}
}

// filterChoose is a field for one of several values.
func filterChoose(name, value, label, all string, values []string) filterField {
	f := filterField{Name: name, Value: value, Label: label, All: all}
	for _, v := range values {
		f.Choices = append(f.Choices, filterChoice{name, v, v == value})
	}
	return f
}

// pager leads through a list that has more than one page.
type pager struct {
	First, Next string // addresses; "" where there is no such page
	// Searched is how many rows were searched for this page, if there are older ones
	// that were not; 0 if the page is full or at the end.
	Searched int
	Thing    string // what the rows are, in the page's word
}

// Of names what the rows are, such as "run".
func (p pager) Of(thing string) pager {
	p.Thing = thing
	return p
}

// crumb is one of the pages above a page.
type crumb struct{ Title, Href string }

// newCrumbs takes a title and an address for each, the uppermost first.
func newCrumbs(pairs ...string) (crumbs []crumb) {
	for i := 0; i+1 < len(pairs); i += 2 {
		crumbs = append(crumbs, crumb{pairs[i], pairs[i+1]})
	}
	return crumbs
}

// entry is one of the menu's; Key is the letter after "g" that goes there.
type entry struct {
	Nav, Path, Key string
	Apart          bool // begins a group
}

var menu = []entry{
	{Nav: "home", Path: "/", Key: "h"},
	{Nav: "deploy", Path: "/deploy", Key: "d"},
	{Nav: "provisions", Path: "/provisions", Key: "p", Apart: true},
	{Nav: "workspaces", Path: "/workspaces", Key: "w"},
	{Nav: "machines", Path: "/machines", Key: "v"},
	{Nav: "pools", Path: "/pools", Key: "o"},
	{Nav: "clusters", Path: "/clusters", Key: "c"},
	{Nav: "templates", Path: "/templates", Key: "t"},
	{Nav: "notifications", Path: "/notifications", Key: "n", Apart: true},
	{Nav: "members", Path: "/members", Key: "m"},
	{Nav: "audit", Path: "/audit", Key: "a"},
	{Nav: "account", Path: "/account", Key: "s"},
}

// icons are drawn on a grid of 24, in strokes of the text's colour: paths only.
var icons = map[string]string{
	"brand":         "M5 21V4M12 21V4M19 21V4M3 9h18M3 16h18",
	"home":          "M4 11.5 12 5l8 6.5M6 10v9h4.5v-5h3v5H18v-9",
	"deploy":        "M12 15V4m-4.5 4L12 3.5 16.5 8M5 13v5.5h14V13",
	"provisions":    "M4 6h2M4 12h2M4 18h2M9 6h11M9 12h11M9 18h11",
	"workspaces":    "M12 3.5 20 8l-8 4.5L4 8l8-4.5ZM4 12.2l8 4.5 8-4.5M4 16.2l8 4.3 8-4.3",
	"machines":      "M4 5h16v11H4ZM8 20h8M12 16v4M8 9l2 2-2 2M12 13h4",
	"pools":         "M4 4.5h7v7H4ZM13.5 4.5h6.5v7h-6.5ZM4 14h7v6.5H4ZM13.5 14h6.5v6.5h-6.5Z",
	"clusters":      "M4 5h16v5.5H4ZM4 13.5h16V19H4ZM7.5 7.7h.01M7.5 16.2h.01M11 7.7h6M11 16.2h6",
	"templates":     "M6 3.5h8L19 8.5V20.5H6ZM14 3.5V8.5H19M9 13h6M9 16.5h6",
	"notifications": "M6 17V11a6 6 0 0 1 12 0v6l1.5 1.5h-15L6 17ZM10 21h4",
	"members":       "M9 11.5a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7ZM2.5 20a6.5 6.5 0 0 1 13 0M16 5a3.3 3.3 0 0 1 0 6.3M18 14.2A6.5 6.5 0 0 1 21.5 20",
	"audit":         "M12 3.5 19 6v6c0 4-3 7-7 8.5-4-1.5-7-4.5-7-8.5V6l7-2.5ZM9 12l2.2 2.2L15.2 10",
	"account":       "M12 12a4 4 0 1 0 0-8 4 4 0 0 0 0 8ZM4.5 20.5a7.5 7.5 0 0 1 15 0",
	"database":      "M5 6c0-1.7 3.1-3 7-3s7 1.3 7 3-3.1 3-7 3-7-1.3-7-3ZM5 6v12c0 1.7 3.1 3 7 3s7-1.3 7-3V6M5 12c0 1.7 3.1 3 7 3s7-1.3 7-3",
	"network":       "M9.5 3.5h5v5h-5ZM12 8.5v3.5M6 16v-4h12v4M3.5 16h5v4.5h-5ZM15.5 16h5v4.5h-5Z",
	"cloud":         "M7 18.5a4.5 4.5 0 0 1-.5-9 6 6 0 0 1 11.4 1.2 4 4 0 0 1-.4 7.8H7Z",
	"container":     "M12 3.5 20 8v8l-8 4.5L4 16V8l8-4.5ZM4 8l8 4.5L20 8M12 12.5v8",
	"signout":       "M14 4H5v16h9M10 12h11m-3.5-3.5L21 12l-3.5 3.5",
	"menu":          "M4 7h16M4 12h16M4 17h16",
	"chooser":       "m8 9.5 4-4 4 4M8 14.5l4 4 4-4",
	"auto":          "M4 5h16v11H4ZM9 20h6M12 16v4",
	"light":         "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8ZM12 2.5v2M12 19.5v2M2.5 12h2M19.5 12h2M5.3 5.3l1.4 1.4M17.3 17.3l1.4 1.4M5.3 18.7l1.4-1.4M17.3 6.7l1.4-1.4",
	"dark":          "M20 14.5A8.5 8.5 0 0 1 9.5 4a8.5 8.5 0 1 0 10.5 10.5Z",
	"keyboard":      "M3 6.5h18v11H3ZM7 10h.01M11 10h.01M15 10h.01M7 14h10",
	"ok":            "m5 12.5 4.5 4.5L19 7.5",
	"failed":        "M6.5 6.5l11 11M17.5 6.5l-11 11",
	"waiting":       "M12 20.5a8.5 8.5 0 1 0 0-17 8.5 8.5 0 0 0 0 17ZM12 7.5V12l3 2",
	"running":       "M20 12a8 8 0 1 1-4-6.9",
	"stopped":       "M12 20.5a8.5 8.5 0 1 0 0-17 8.5 8.5 0 0 0 0 17ZM6 18 18 6",
	"hand":          "M12 3.5 21 19.5H3L12 3.5ZM12 10v4.5M12 17h.01",
	"warning":       "M12 3.5 21 19.5H3L12 3.5ZM12 10v4.5M12 17h.01",
	"error":         "M12 20.5a8.5 8.5 0 1 0 0-17 8.5 8.5 0 0 0 0 17ZM12 7.5v5M12 16h.01",
	"info":          "M12 20.5a8.5 8.5 0 1 0 0-17 8.5 8.5 0 0 0 0 17ZM12 11v5.5M12 7.7h.01",
	"success":       "M12 20.5a8.5 8.5 0 1 0 0-17 8.5 8.5 0 0 0 0 17ZM8.5 12.2l2.5 2.5 4.7-5",
	"pause":         "M8.5 5.5v13M15.5 5.5v13",
	"play":          "M7.5 5v14l11-7-11-7Z",
	"lock":          "M6 11h12v9H6ZM8.5 11V8a3.5 3.5 0 0 1 7 0v3",
	"drift":         "M4 8c3-3 5 3 8 0s5 3 8 0M4 15c3-3 5 3 8 0s5 3 8 0",
	"key":           "M8.5 15.5a4 4 0 1 0 0-8 4 4 0 0 0 0 8ZM12.3 11.5H21M17.5 11.5v3.5M20.5 11.5v2.5",
	"copy":          "M9 9h10.5v11H9ZM5 15H4.5V4H15v1",
	"search":        "M10.5 17a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13ZM15.5 15.5 20.5 20.5",
	"plus":          "M12 5v14M5 12h14",
	"minus":         "M5 12h14",
	"edit":          "M5 19l1-4L16 5l3 3L9 18l-4 1Z",
	"trash":         "M4.5 7h15M9.5 7V4.5h5V7M6.5 7l1 13h9l1-13M10.5 11v5.5M13.5 11v5.5",
	"replace":       "M19.5 9A8 8 0 0 0 5 8M4.5 4v4.5H9M4.5 15A8 8 0 0 0 19 16M19.5 20v-4.5H15",
	"right":         "m9.5 5.5 6.5 6.5-6.5 6.5",
	"left":          "m14.5 5.5-6.5 6.5 6.5 6.5",
	"external":      "M13.5 4.5h6v6M19.5 4.5l-9 9M17 14v5.5H4.5V7H10",
	"download":      "M12 4v11m-4.5-4.5L12 15l4.5-4.5M5 19.5h14",
	"read":          "M2.5 12C5 7.5 8.3 5.5 12 5.5s7 2 9.5 6.5c-2.5 4.5-5.8 6.5-9.5 6.5s-7-2-9.5-6.5ZM12 14.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5Z",
	"retry":         "M19.5 12a7.5 7.5 0 1 1-2.5-5.6M19.5 4v4.5H15",
	"settings":      "M4 7h9M17.5 7H20M4 17h2.5M11 17h9M15.2 9.3a2.3 2.3 0 1 0 0-4.6 2.3 2.3 0 0 0 0 4.6ZM8.8 19.3a2.3 2.3 0 1 0 0-4.6 2.3 2.3 0 0 0 0 4.6Z",
}

// icon is a sign next to words, and so hidden from screen readers.
func icon(name string) (template.HTML, error) {
	path, ok := icons[name]
	if !ok {
		return "", fmt.Errorf("there is no icon %q", name)
	}
	return template.HTML(`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false"><path d="` + path + `"/></svg>`), nil //nolint:gosec // of our own making
}

// templateIcons are the icons that a template can name, and what draws them.
var templateIcons = map[string]string{
	"server": "machines", "cluster": "clusters", "people": "members", "database": "database", "network": "network", "cloud": "cloud", "container": "container",
}

// templateIcon is the icon that a template names, or the one that all templates have.
func templateIcon(about *provision.About) (template.HTML, error) {
	name := "templates"
	if about != nil {
		name = cmp.Or(templateIcons[about.Icon], name)
	}
	return icon(name)
}

// actor is who did something: a person or, without name and id, the platform.
type actor struct {
	Name, ID string
	Me       bool // the reader
}

// actorOf is an actor by name and id. Either may be missing; an id is anything that
// prints as one.
func actorOf(name, id any) actor { return actor{Name: text(name), ID: text(id)} }

// instant is a time as pages show it: relative, and exact on hover. Its words are in
// components/time.html, and times.js keeps them true.
type instant struct{ at, now time.Time }

// instantOf takes a time.Time or a pointer to one; nil for none.
func instantOf(at any) *instant {
	i := &instant{now: time.Now()}
	switch v := at.(type) {
	case time.Time:
		i.at = v
	case *time.Time:
		if v != nil {
			i.at = *v
		}
	}
	if i.at.IsZero() {
		return nil
	}
	return i
}

// Machine is the time as scripts read it.
func (i *instant) Machine() string { return i.at.UTC().Format(time.RFC3339Nano) }

// Exact is the time as a person reads it without a script.
func (i *instant) Exact() string { return i.at.UTC().Format("2006-01-02 15:04:05 UTC") }

// Now reports whether it is as good as now.
func (i *instant) Now() bool { return i.now.Sub(i.at).Abs() < 5*time.Second }

// Ahead reports whether it is still to come.
func (i *instant) Ahead() bool { return i.at.After(i.now) }

// Distance is how far from now it is: "3 minutes".
func (i *instant) Distance() string {
	n, unit := i.now.Sub(i.at).Abs().Seconds(), "year"
	for _, u := range []struct {
		name string
		size float64
	}{{"second", 60}, {"minute", 60}, {"hour", 24}, {"day", 30}, {"month", 12}} {
		if n < u.size {
			unit = u.name
			break
		}
		n /= u.size
	}
	return plural(int(n), unit)
}

// visible is text of somebody else's, such as an output or an error: what cannot
// be seen in it, or would turn or overwrite what stands next to it, is shown by its
// number. assets/log/marks.js does the same for logs.
func visible(v any) template.HTML {
	var b strings.Builder
	for _, r := range text(v) {
		if r == '\n' || r == '\t' || !hiddenRune(r) {
			template.HTMLEscape(&b, []byte(string(r)))
			continue
		}
		fmt.Fprintf(&b, `<span class="unseen" title="an invisible character">U+%04X</span>`, r)
	}
	return template.HTML(b.String()) //nolint:gosec // escaped above
}

// hiddenRune reports whether a character has no look of its own: control and
// format characters, and fillers that are letters by their class only.
func hiddenRune(r rune) bool {
	switch r {
	case 0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0, 0x2028, 0x2029, unicode.ReplacementChar:
		return r != unicode.ReplacementChar
	case 0x200D: // joins emoji and letters of some scripts
		return false
	}
	return unicode.In(r, unicode.Cc, unicode.Cf) || r >= 0xE0000 && r <= 0xE0FFF
}

// stageRow is an attempt's stages.
type stageRow struct {
	Attempt int
	Stages  []stageView
}

// stageView is a stage as the page shows it.
type stageView struct {
	Key   string // names it among all of the provision's
	Stage provision.Stage
	State string // done, running, failed, waiting or ahead
	Took  time.Duration
	Seq   int64 // the first row of the log in it; 0 where it has printed nothing
}

// wait is a reason for which a run does not start yet, as SQL's why_waiting gives it,
// with the pages where a person does something about it.
type wait struct {
	Reason, Message         string
	Number                  int64 // of the run that it waits for; 0 for none
	Run, Workspace, Cluster string
}

// waitsOf are a run's reasons, the first one first.
func waitsOf(p store.Provision) []wait {
	return waits(p, "/workspaces?q="+escapeQuery(p.Workspace))
}

func waits(p store.Provision, workspace string) (all []wait) {
	for _, r := range p.Why {
		var about struct {
			Number int64 `json:"number"`
		}
		_ = json.Unmarshal(r.Detail, &about) // then it names no run
		if about.Number == p.Number {
			about.Number = 0
		}
		all = append(all, wait{Reason: r.Reason, Message: r.Message, Number: about.Number, Run: runPath(p.Number), Workspace: workspace, Cluster: clusterPath(p.Cluster)})
	}
	return all
}

// OfCluster reports whether it is dealt with on the cluster's page.
func (w wait) OfCluster() bool {
	return slices.Contains([]string{"cluster_paused", "no_agent", "home_away", "agent_too_old", "operation_refused", "slots_busy"}, w.Reason)
}

// Leads reports whether there is a page where a person can do something.
func (w wait) Leads() bool {
	return w.OfCluster() || w.Number > 0 || slices.Contains([]string{"awaits_approval", "workspace_locked", "workspace_held", "state_kept"}, w.Reason)
}

// logView is the log of a run as its page begins with: the browser reads the lines.
type logView struct {
	URL  string // of the rows
	Over bool   // nothing is added any more
}

// Text is where the log is as text.
func (l logView) Text() string { return l.URL + "?format=text" }

// Line is the line that the browser copies.
func (logView) Line() logLine { return logLine{} }

// logLine is one line of a log.
type logLine struct {
	Stream             string // STDOUT, STDERR or SYSTEM
	Error              bool
	Number, Time, Text string
}
