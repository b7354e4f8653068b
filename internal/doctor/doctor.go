package doctor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/mitchellh/go-wordwrap"

	"github.com/tendril-run/tendril/internal/config"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/timelimit"
)

// Options say what to look at.
type Options struct {
	// Version is the program's.
	Version string
	// File is the configuration file, "" without one.
	File string
	// Config is the agent's configuration, and ConfigErr why there is none.
	Config    config.Config
	ConfigErr error
	// Open opens the queue as an agent does.
	Open func(queue.Agent) (queue.Queue, error)
	// Git is how repositories are reached, credentials included.
	Git func(context.Context) (job.Git, error)
	// Repos are repositories to try beside those that the policy names whole.
	Repos []string
	// Environ is the agent's environment.
	Environ []string
	// Metadata is the address of the cloud's metadata service; "" is the clouds' usual one.
	Metadata string
	// Now is the clock; nil is this machine's.
	Now func() time.Time
}

// doctor is one examination.
type doctor struct {
	Options
	uid int

	// standing is what the database answered; set by the check "token".
	standing *queue.Standing
	// skew is how far this clock is ahead of the database's, give or take doubt.
	skew, doubt time.Duration
	// agentRuns: the data directory is locked; set by the check "data_dir".
	agentRuns bool

	mu sync.Mutex
	// read are secrets that a check has read; what hangs may read them late.
	read []string
}

// Examine looks at everything. It takes less than 15 s, whatever hangs.
func Examine(ctx context.Context, o Options) Report {
	if o.Now == nil {
		o.Now = time.Now
	}
	d := &doctor{Options: o, uid: os.Geteuid()}
	return newReport(o.Version, d.scrub(runAll(ctx, d.checks())))
}

// checks lists them in the order of the report.
func (d *doctor) checks() []check {
	configured := func(more ...string) []string { return append([]string{"configuration"}, more...) }
	return append([]check{
		{"configuration", nil, d.configuration, each},
		{"data_dir", configured(), d.dataDir, each},
		{"identity", configured(), d.identity, each},
		{"disk", configured(), d.disk, each},
		{"caches", configured(), d.caches, each},
		{"states", configured("data_dir"), d.states, each},
		{"queue", configured(), d.queueReachable, each},
		{"token", configured("queue"), d.token, each},
		{"contract", configured("token"), d.contract, each},
		{"clock", configured("token"), d.clock, each},
		{"name", configured("data_dir", "token"), d.name, each},
		{"publications", configured("token"), d.publications, each},
		{"wakes", configured("token"), d.wakes, wakesLimit},
		{"health", configured("data_dir"), d.health, each},
		{"engine", configured(), d.engine, engineLimit},
		{"allowlist", configured(), d.allowlist, each},
		{"git", configured(), d.git, each},
		{"backend", configured(), d.backend, each},
		{"secrets", configured(), d.secrets, each},
		{"templates", configured(), d.templates, each},
		{"metadata", configured(), d.metadata, each},
	}, d.pools()...)
}

const (
	// each bounds one check, whole all of them, one after the other or not.
	each  = 8 * time.Second
	whole = 13 * time.Second
	// engineLimit bounds the check of the engine, which needs no other: a machine that
	// is busy or has a slow disk takes long to load a program of 90 MB.
	engineLimit = 12 * time.Second
	// wakesLimit bounds the check of wakes: Supabase's Realtime waits 5 s before it says no.
	wakesLimit = 9 * time.Second
	// grace is how long a check may take to notice that its time is over.
	grace = 300 * time.Millisecond
)

// check looks at one thing. It has nothing to say where one of those that it
// needs failed or was skipped; they stand before it.
type check struct {
	name  string
	needs []string
	run   func(context.Context) verdict
	limit time.Duration
}

// running is a check under way.
type running struct {
	done   chan struct{}
	result Result
}

// runAll runs checks side by side as far as their needs allow, and returns what
// they found in their own order.
func runAll(ctx context.Context, checks []check) []Result {
	ctx, cancel := timelimit.Context(ctx, whole)
	defer cancel()
	all := make(map[string]*running, len(checks))
	for _, c := range checks {
		r := &running{done: make(chan struct{})}
		needs := make([]*running, len(c.needs))
		for i, name := range c.needs {
			needs[i] = all[name]
		}
		all[c.name] = r
		go func() {
			defer close(r.done)
			v := c.after(ctx, needs)
			r.result = Result{Name: c.name, Status: v.status, Message: v.message, Action: v.action}
		}()
	}
	results := make([]Result, len(checks))
	for i, c := range checks {
		<-all[c.name].done
		results[i] = all[c.name].result
	}
	return results
}

func (c check) after(ctx context.Context, needs []*running) verdict {
	for _, need := range needs {
		<-need.done
		if status := need.result.Status; status == Fail || status == Skipped {
			return skipped("not checked: it needs %s", need.result.Name)
		}
	}
	return c.within(ctx)
}

// within runs the check for as long as it may take. One that hangs in a system
// call, as a file system that has gone does it, is left behind.
func (c check) within(ctx context.Context) verdict {
	ctx, cancel := timelimit.Context(ctx, c.limit)
	defer cancel()
	began := time.Now()
	found := make(chan verdict, 1)
	go func() { found <- c.run(ctx) }()
	select {
	case v := <-found:
		return v
	case <-ctx.Done():
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case v := <-found:
		return v
	case <-timer.C:
		return fail("check what it depends on (a network file system, a proxy) and try again",
			"gave no answer within %s", since(began))
	}
}

func since(began time.Time) string {
	return time.Since(began).Round(time.Millisecond).String()
}

// Status is the verdict on one thing.
type Status string

// The verdicts. What is OK may still tell something worth knowing.
const (
	OK      Status = "ok"
	Warn    Status = "warn"    // it works, and is not as it should be
	Fail    Status = "fail"    // an agent would not work, or not safely
	Skipped Status = "skipped" // could not be looked at, or does not apply
)

// Result is what was found about one thing. Names and fields are for programs
// to go by: they stay.
type Result struct {
	Name    string `json:"name"`
	Status  Status `json:"status"`
	Message string `json:"message"`
	// Action is what to do about it; "" where there is nothing to do.
	Action string `json:"action,omitempty"`
}

// Report is what was found about everything.
type Report struct {
	// Status is the worst of the checks': fail, warn or ok.
	Status Status `json:"status"`
	// Version is the program's.
	Version string   `json:"version"`
	Checks  []Result `json:"checks"`
}

// Failed reports whether anything failed.
func (r Report) Failed() bool { return r.Status == Fail }

// Count returns how many checks have a status.
func (r Report) Count(status Status) (n int) {
	for _, check := range r.Checks {
		if check.Status == status {
			n++
		}
	}
	return n
}

func newReport(version string, checks []Result) Report {
	r := Report{Status: OK, Version: version, Checks: checks}
	switch {
	case r.Count(Fail) > 0:
		r.Status = Fail
	case r.Count(Warn) > 0:
		r.Status = Warn
	}
	return r
}

// verdict is a Result without its name.
type verdict struct {
	status          Status
	message, action string
}

func ok(format string, args ...any) verdict {
	return verdict{status: OK, message: fmt.Sprintf(format, args...)}
}

func warn(action, format string, args ...any) verdict {
	return verdict{status: Warn, action: action, message: fmt.Sprintf(format, args...)}
}

func fail(action, format string, args ...any) verdict {
	return verdict{status: Fail, action: action, message: fmt.Sprintf(format, args...)}
}

func skipped(format string, args ...any) verdict {
	return verdict{status: Skipped, message: fmt.Sprintf(format, args...)}
}

// leastSecret is the length below which a value is not hidden: it would be found
// in every second word, and tells nobody anything.
const leastSecret = 6

// scrub hides the secrets of the configuration wherever they stand. The checks
// name none; what others said, a server or a library, might.
func (d *doctor) scrub(results []Result) []Result {
	var pairs []string
	for _, secret := range d.secretValues() {
		if len(secret) >= leastSecret {
			pairs = append(pairs, secret, "[hidden]")
		}
	}
	hide := strings.NewReplacer(pairs...)
	for i, r := range results {
		results[i].Message, results[i].Action = hide.Replace(r.Message), hide.Replace(r.Action)
	}
	return results
}

// hide adds secrets to those that are hidden.
func (d *doctor) hide(secrets ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.read = append(d.read, secrets...)
}

func (d *doctor) secretValues() []string {
	token := d.Config.Queue.Token.Reveal()
	d.mu.Lock()
	secrets := append([]string{d.Config.Queue.APIKey}, d.read...)
	d.mu.Unlock()
	if token != "" {
		sum := sha256.Sum256([]byte(token))
		secrets = append(secrets, token, hex.EncodeToString(sum[:]))
	}
	for _, address := range []string{d.Config.Queue.URL, d.Config.Queue.ListenURL, d.Config.Engine.MirrorURL} {
		if parsed, err := url.Parse(address); err == nil {
			if password, has := parsed.User.Password(); has {
				secrets = append(secrets, password, url.QueryEscape(password))
			}
			secrets = append(secrets, parsed.Query().Get("password"))
		}
	}
	for _, table := range d.Config.State.Config {
		for key, value := range table {
			if secretKey(key) {
				secrets = append(secrets, value)
			}
		}
	}
	return secrets
}

// secretKey reports whether a backend's argument is one that holds a secret.
func secretKey(key string) bool {
	for _, part := range []string{"password", "secret", "token", "access_key", "conn_str", "credentials", "private_key", "sas"} {
		if strings.Contains(key, part) {
			return key != "secret_suffix"
		}
	}
	return false
}

// Style is how a report is written for people.
type Style struct {
	// Width is where lines are broken; 0 is nowhere.
	Width int
	// Colour marks verdicts by colour beside their words.
	Colour bool
}

// labels are the words for verdicts, those first that matter least.
var labels = map[Status]struct{ word, colour string }{
	OK:      {"ok", "\x1b[32m"},
	Warn:    {"warn", "\x1b[33m"},
	Fail:    {"FAIL", "\x1b[1;31m"},
	Skipped: {"skip", "\x1b[2m"},
}

// leastRoom is the narrowest column for texts. Where less is left beside the longest name,
// they go below, indented by below.
const (
	leastRoom = 24
	below     = "    "
)

// WriteText writes the report as a table: first what is as it should be, then, together, what
// is not, the worst last, with what to do below each. Without a configuration there is nothing
// else to look at, and no word of it.
func (r Report) WriteText(w io.Writer, s Style) error {
	checks := r.Checks
	if len(checks) > 0 && checks[0].Status == Fail {
		checks = checks[:1]
	}
	name := 0
	for _, check := range checks {
		name = max(name, utf8.RuneCountInString(check.Name))
	}
	var b strings.Builder
	for _, group := range [][]Status{{OK, Skipped}, {Warn}, {Fail}} {
		for _, check := range checks {
			if !slices.Contains(group, check.Status) {
				continue
			}
			if check.Action != "" && b.Len() > 0 {
				b.WriteString("\n")
			}
			s.write(&b, check, name)
		}
	}
	fmt.Fprintf(&b, "\n%s\n", r.summary())
	_, err := io.WriteString(w, b.String())
	return err
}

// write writes a check, whose name takes as much room as the longest one.
func (s Style) write(b *strings.Builder, check Result, name int) {
	label := labels[check.Status]
	word := fmt.Sprintf("%-4s", label.word)
	head := fmt.Sprintf("  %-*s  ", name, check.Name)
	b.WriteString(s.paint(word, label.colour))
	indent := strings.Repeat(" ", len(word)+utf8.RuneCountInString(head))
	if s.Width > 0 && s.Width-len(indent) < leastRoom {
		indent, head = below, strings.TrimRight(head, " ")+"\n"+below
	}
	b.WriteString(head + s.wrap(check.Message, indent) + "\n")
	if check.Action != "" {
		b.WriteString(indent + "→ " + s.wrap(check.Action, indent+"  ") + "\n")
	}
}

// wrap breaks a text whose lines after the first are indented.
func (s Style) wrap(text, indent string) string {
	text = strings.Join(strings.Fields(printable.Text(text)), " ")
	if room := s.Width - len(indent); s.Width > 0 {
		text = strings.ReplaceAll(wordwrap.WrapString(text, uint(max(room, 1))), "\n", "\n"+indent)
	}
	return text
}

// summary counts the verdicts.
func (r Report) summary() string {
	parts := []string{fmt.Sprintf("%d ok", r.Count(OK))}
	if n := r.Count(Warn); n > 0 {
		parts = append(parts, counted(n, "warning", "warnings"))
	}
	if n := r.Count(Fail); n > 0 {
		parts = append(parts, fmt.Sprintf("%d failed", n))
	}
	if n := r.Count(Skipped); n > 0 {
		parts = append(parts, fmt.Sprintf("%d not checked", n))
	}
	return strings.Join(parts, ", ")
}

func (s Style) paint(text, colour string) string {
	if !s.Colour {
		return text
	}
	return colour + text + "\x1b[0m"
}
