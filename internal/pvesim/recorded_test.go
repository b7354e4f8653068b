package pvesim

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/testkit/patience"

	"github.com/tendril-run/tendril/internal/testkit/pveversions"
)

// exchange is one recorded request with its answer, and the task that it began.
type exchange struct {
	Topic, Title, Method, Path, Token string
	RequestHeaders                    map[string]string `json:"request_headers"`
	RequestBody                       *string           `json:"request_body"`
	Status                            int
	Reason                            string
	Body                              any
	BodyText                          *string `json:"body_text"`
	Task                              *struct {
		UPID  string
		Polls []struct{ Data map[string]any }
		Log   []string
	}

	at   int
	over bool // compared, or left out
}

func TestRecorded(t *testing.T) {
	t.Parallel()
	data := pveversions.Beside(t, "pve-exchanges.json")
	if data == nil {
		t.Skip("the simulator is not held to the recordings: there is no shared/pve-exchanges.json beside the repository")
	}
	var file struct{ Exchanges []*exchange }
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	r := newReplay(t)
	var all [][]*exchange // those of one group were sent at once
	for i, e := range file.Exchanges {
		e.at = i
		if last := len(all) - 1; e.Topic == "concurrency" && last >= 0 && stem(all[last][0]) == stem(e) {
			all[last] = append(all[last], e)
			continue
		}
		all = append(all, []*exchange{e})
	}
	for _, group := range all {
		// Which of them wins is chance: the winner first.
		slices.SortStableFunc(group, func(a, b *exchange) int { return a.loses() - b.loses() })
		waits := strings.HasSuffix(group[0].Title, "timeout=40: started")
		if waits {
			r.s.Speed(3 / patience.For(time.Second).Seconds()) // what follows must come within these 40 seconds
		} else if group[0].Method == "" { // what became of that
			r.s.Speed(fast)
		}
		begin := func() {}
		if len(group) > 1 && !slices.ContainsFunc(group, func(e *exchange) bool { return e.Task == nil }) {
			begin = r.s.HoldTasks() // all were asked before any was done
		}
		for _, e := range group {
			r.ask(e)
		}
		begin()
		if waits {
			// The next requests find its lock taken.
			patience.Await(t, "the task to have its machine's lock", func() bool {
				r.s.mu.Lock()
				defer r.s.mu.Unlock()
				return r.s.held[608] == -1
			})
		}
		r.match(group)
		for _, e := range group {
			r.finish(e)
		}
	}
	for m := range r.missing {
		if !slices.Contains(absent, m) {
			t.Errorf("the simulator does not have %s", m)
		}
	}
	if r.same < 640 {
		t.Errorf("only %d exchanges are the same", r.same)
	}
	t.Logf("%d exchanges compared, %d differ for a reason, %d left out with their methods: %v", r.same, r.known, r.without, slices.Sorted(maps.Keys(r.missing)))
}

func stem(e *exchange) string {
	if at := strings.LastIndex(e.Title, ": "); at > 0 {
		return e.Title[:at]
	}
	return e.Title
}

// loses is 0 for what came true, and more for what did not.
func (e *exchange) loses() int {
	switch {
	case e.Status != 200:
		return 2
	case e.Task != nil && e.exit() != "OK":
		return 1
	}
	return 0
}

type replay struct {
	t                    *testing.T
	s                    *Server
	client               *http.Client
	upids, digests       map[string]string
	same, known, without int
	missing              map[string]bool
}

// fast is how many times as fast as the recording the replay is.
const fast = 25

func newReplay(t *testing.T) *replay {
	s := New(t, Options{Speed: fast, Round: 24 * time.Hour, Nodes: []Node{{Name: "pve1", Cores: 2, Memory: 25276026880, UsedMemory: 1956278272, NoKVM: true}}})
	s.Pool("lab", "the lab's pool")
	s.AddUser("off@pve", false)
	for _, token := range []Token{{ID: "root@pam!full"}, {ID: "ci@pve!runner", Separate: true}, {ID: "ci@pve!same"}, {ID: "ci@pve!nopriv", Separate: true}, {ID: "limited@pve!tk"}, {ID: "cloner@pve!tk"}, {ID: "nostore@pve!tk"}, {ID: "off@pve!tk"}, {ID: "ci@pve!expired", Expired: true}} {
		token.Secret = "secret"
		s.AddToken(token)
	}
	s.Grant("ci@pve", "/", "PVEAdmin")
	s.Grant("ci@pve!runner", "/vms", "PVEVMAdmin")
	s.Grant("ci@pve!runner", "/storage", "PVEDatastoreUser")
	s.Grant("limited@pve", "/vms", "PVEAuditor")
	s.Grant("cloner@pve", "/vms/9000", "VM.Audit,VM.Clone")
	s.Grant("cloner@pve", "/vms/101", "VM.Audit,VM.Config.Options")
	s.Grant("cloner@pve", "/pool/lab", "PVEPoolUser")
	s.Grant("nostore@pve", "/vms", "VM.Audit,VM.Clone,VM.Allocate,VM.PowerMgmt")
	s.Volume("pve1", "local:import/boot.qcow2", "import", "qcow2", 67108864, 0)
	s.Volume("pve1", "local:import/boot.raw", "import", "raw", 67108864, 0)
	s.mu.Lock()
	s.volumes["pve1 local:import/boot.qcow2"].stored = 393216
	s.mu.Unlock()
	return replayOn(t, s)
}

func replayOn(t *testing.T, s *Server) *replay {
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &replay{t: t, s: s, client: &http.Client{Transport: transport}, upids: map[string]string{}, digests: map[string]string{}, missing: map[string]bool{}}
}

func (r *replay) header(token string) string {
	id := map[string]string{"root": "root@pam!full", "runner": "ci@pve!runner", "same": "ci@pve!same", "nopriv": "ci@pve!nopriv", "limited": "limited@pve!tk", "cloner": "cloner@pve!tk", "nostore": "nostore@pve!tk",
		"off": "off@pve!tk", "expired": "ci@pve!expired", "unknown": "ci@pve!unknown", "nouser": "nobody@pve!tk"}[token]
	switch token {
	case "":
		return ""
	case "wrong":
		return "PVEAPIToken=root@pam!full=wrong"
	case "garbage":
		return "PVEAPIToken=garbage"
	}
	return "PVEAPIToken=" + id + "=secret"
}

var (
	upidForm   = regexp.MustCompile(`UPID:([^:]+):[0-9A-F]{8}:[0-9A-F]{8}:[0-9A-F]{8}:`)
	wholeUPID  = regexp.MustCompile(`UPID:[^:]+:[0-9A-F]{8}:[0-9A-F]{8}:[0-9A-F]{8}:[^:]+:[^:]*:[^:]+:`)
	digestForm = regexp.MustCompile(`digest=([0-9a-f]{40})`)
	macForm    = regexp.MustCompile(`BC:24:11(:[0-9A-F]{2}){3}`)
	manyX      = regexp.MustCompile(`^description=(x+)… \((\d+) bytes\)$`)
)

// changing are keys whose numbers are of the moment.
var changing = strings.Fields("uptime pid pstart starttime endtime ctime snaptime mem cpu netin netout used avail free used_fraction disk smbios1 vmgenid meta digest ssl_fingerprint loadavg repoid saved memory cpuinfo rootfs kversion current-kernel total")

// plain makes two answers comparable: no order of lists, nothing of the moment.
func plain(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, e := range v {
			switch {
			case k == "memory" && reflect.TypeOf(e) != nil && reflect.TypeOf(e).Kind() == reflect.String:
				out[k] = e
			case slices.Contains(changing, k):
				out[k] = "…"
			case k == "content":
				parts := strings.Split(fmt.Sprint(e), ",")
				slices.Sort(parts)
				out[k] = strings.Join(parts, ",")
			case k == "cipassword" && e != "**********":
				out[k] = "hash"
			default:
				out[k] = plain(e)
			}
		}
		if v["key"] == "digest" || v["key"] == "vmgenid" || v["key"] == "meta" || v["key"] == "smbios1" {
			out["value"] = "…"
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = plain(e)
		}
		slices.SortFunc(out, func(a, b any) int { return strings.Compare(text(a), text(b)) })
		return out
	case string:
		return macForm.ReplaceAllString(upidForm.ReplaceAllString(v, "UPID:$1:…:"), "MAC")
	}
	return v
}

func text(v any) string {
	data, _ := json.Marshal(v)
	return string(data)
}

// lines are a task's log without how often progress was said, and whether a lock was waited for.
func lines(log []string) []string {
	var out []string
	for _, l := range log {
		if strings.HasPrefix(l, "transferred") || l == "trying to acquire lock..." || l == " OK" {
			continue
		}
		out = append(out, fmt.Sprint(plain(l)))
	}
	return out
}

func (r *replay) differ(e *exchange, format string, args ...any) {
	e.over = true
	if differs[e.Title] != "" {
		r.known++
		return
	}
	r.t.Errorf("#%d %s: %s (%s %s)\n\t%s", e.at, e.Topic, e.Title, e.Method, e.Path, fmt.Sprintf(format, args...))
}

// leave leaves an exchange out, with the method that the simulator does not have.
func (r *replay) leave(e *exchange, method string) {
	e.over = true
	r.without++
	r.missing[method] = true
}

// ask sends a request and compares the answer.
func (r *replay) ask(e *exchange) {
	switch {
	case e.Topic == "ticket" || strings.HasPrefix(e.Path, "/api2/json/access/ticket"):
		r.leave(e, "tickets")
		return
	case e.at >= 740 && e.Topic == "concurrency":
		r.leave(e, "another run of the races")
		return
	}
	if do := byHand[e.Title]; do != nil {
		do(r.s)
	}
	if e.Method == "" {
		return
	}
	answer, err := r.send(e)
	switch {
	case err != nil:
		r.differ(e, "request: %v", err)
		return
	case answer.status == 501 && e.Status != 501:
		r.leave(e, e.Method+" "+upidForm.ReplaceAllString(strings.TrimPrefix(e.Path, "/api2/json"), ""))
		return
	case answer.status != e.Status || answer.reason != e.Reason:
		r.differ(e, "got %d %s, want %d %s", answer.status, answer.reason, e.Status, e.Reason)
		return
	}
	if got, want := text(plain(answer.body)), text(plain(e.Body)); got != want {
		at := 0
		for at < min(len(got), len(want)) && got[at] == want[at] {
			at++
		}
		around := func(s string) string { return s[max(at-80, 0):min(at+200, len(s))] }
		r.differ(e, "got  …%s\n\twant …%s", around(got), around(want))
		return
	}
	if e.BodyText != nil && *e.BodyText != answer.text && e.Body == nil {
		r.differ(e, "got text %q, want %q", answer.text, *e.BodyText)
		return
	}
	r.learn(e.Body, answer.body)
}

// match gives each exchange of a group the task that ended as its own did: which of several
// tasks gets a lock first is chance here as well.
func (r *replay) match(group []*exchange) {
	for i, e := range group {
		for _, other := range group[i+1:] {
			if e.over || e.Task == nil || other.over || other.Task == nil || r.s.Wait(r.upids[e.Task.UPID]) == e.exit() {
				continue
			}
			if r.s.Wait(r.upids[other.Task.UPID]) == e.exit() {
				r.upids[e.Task.UPID], r.upids[other.Task.UPID] = r.upids[other.Task.UPID], r.upids[e.Task.UPID]
			}
		}
	}
}

// exit is how the exchange's task ended.
func (e *exchange) exit() any { return e.Task.Polls[len(e.Task.Polls)-1].Data["exitstatus"] }

// finish compares how the task ended that an exchange began.
func (r *replay) finish(e *exchange) {
	if e.over {
		return
	}
	if e.Task == nil {
		r.same++
		return
	}
	upid := r.upids[e.Task.UPID]
	if got := r.s.Wait(upid); got != e.exit() {
		r.differ(e, "task ends with %q, want %q", got, e.exit())
		return
	}
	got, err := r.send(&exchange{Method: "GET", Path: "/api2/json/nodes/pve1/tasks/" + upid + "/log?limit=0", Token: "root"})
	if err != nil {
		r.t.Fatal(err)
	}
	var log []string
	if body, ok := got.body.(map[string]any); ok {
		if data, ok := body["data"].([]any); ok {
			for _, l := range data {
				log = append(log, fmt.Sprint(l.(map[string]any)["t"]))
			}
		}
	}
	if got, want := lines(log), lines(e.Task.Log); !slices.Equal(got, want) {
		r.differ(e, "log\n\t\t%s\n\twant\n\t\t%s", strings.Join(got, "\n\t\t"), strings.Join(want, "\n\t\t"))
		return
	}
	r.same++
}

// learn remembers what the simulator calls what the recording has under another name.
func (r *replay) learn(want, got any) {
	switch want := want.(type) {
	case map[string]any:
		if got, ok := got.(map[string]any); ok {
			for k, v := range want {
				if d, ok := v.(string); ok && k == "digest" {
					r.digests[d] = fmt.Sprint(got[k])
				}
				r.learn(v, got[k])
			}
		}
	case string:
		if got, ok := got.(string); ok && strings.HasPrefix(want, "UPID:") {
			r.upids[want] = got
		}
	}
}

type reply struct {
	status       int
	reason, text string
	body         any
}

func (r *replay) send(e *exchange) (reply, error) {
	path := e.Path
	if before, _, ok := strings.Cut(path, "…("); ok {
		path = before + strings.Repeat("x", 10<<10-len(before))
	}
	path = wholeUPID.ReplaceAllStringFunc(path, func(u string) string {
		if mine, ok := r.upids[u]; ok {
			return mine
		}
		return u
	})
	for old, mine := range r.upids {
		path = strings.ReplaceAll(path, strings.NewReplacer(":", "%3A", "@", "%40", "!", "%21").Replace(old), strings.NewReplacer(":", "%3A", "@", "%40", "!", "%21").Replace(mine))
	}
	var body io.Reader
	if e.RequestBody != nil {
		form := *e.RequestBody
		if m := manyX.FindStringSubmatch(form); m != nil {
			var n int
			_, _ = fmt.Sscan(m[2], &n)
			form = "description=" + strings.Repeat("x", n-len("description="))
		}
		form = digestForm.ReplaceAllStringFunc(form, func(d string) string {
			d = strings.TrimPrefix(d, "digest=")
			if mine, ok := r.digests[d]; ok {
				return "digest=" + mine
			}
			if strings.Trim(d, "0") != "" { // read by a request that was not recorded
				if now, err := r.send(&exchange{Method: "GET", Path: e.Path, Token: "root"}); err == nil {
					r.learn(map[string]any{"data": map[string]any{"digest": d}}, now.body)
				}
			}
			return "digest=" + r.digests[d] + strings.Repeat("0", 40-len(r.digests[d]))
		})
		body = strings.NewReader(form)
	}
	req, err := http.NewRequest(e.Method, r.s.URL(), body)
	if err != nil {
		return reply{}, err
	}
	req.URL.Opaque = "//" + strings.TrimPrefix(r.s.URL(), "https://") + path
	for k, v := range e.RequestHeaders {
		req.Header.Set(k, v)
	}
	if h := r.header(e.Token); h != "" {
		req.Header.Set("Authorization", h)
	}
	if a := authorization[e.Title]; a != "" {
		req.Header.Set("Authorization", a)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return reply{}, err
	}
	out := reply{status: resp.StatusCode, reason: strings.TrimPrefix(strings.TrimPrefix(resp.Status, fmt.Sprint(resp.StatusCode)), " "), text: string(data)}
	if bytes.HasPrefix(data, []byte("{")) {
		if err := json.Unmarshal(data, &out.body); err != nil {
			return reply{}, err
		}
	}
	return out, nil
}
