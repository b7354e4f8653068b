package console

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/browsertest"
)

// shownComponents is the page for development: testdata/components.html shows each
// component in all its states.
func shownComponents(t *testing.T) string {
	t.Helper()
	p, err := loadPages()
	if err != nil {
		t.Fatal(err)
	}
	page, err := p.byName["error"].Clone()
	if err == nil {
		page, err = page.ParseFiles("testdata/components.html")
	}
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := page.ExecuteTemplate(&b, "layout", view{Version: "development", Data: newSamples()}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// samples are the values that the page shows.
type samples struct {
	None                                       any
	Statuses                                   []statusLook
	Times                                      []time.Time
	People                                     []actor
	Pagers                                     []pager
	NoRefusal                                  *store.RefusedError
	Refusal                                    *store.RefusedError
	Failures                                   []failure
	Outputs                                    []output
	Sources                                    []provision.TemplateSource
	Flashes                                    []*flash
	LogLines                                   []logLine
	Log                                        logView
	Stages                                     []stageRow
	Abouts                                     []*provision.About
	Steps                                      []stepGroup
	Policies                                   []store.Policy
	Clusters                                   []clusterView
	Install                                    installation
	Loads                                      []load
	Reservations                               []store.Reservation
	Sealed                                     sealedOutput
	SealedHelp                                 sealedHelp
	NoKey                                      *requester
	Plan, EmptyPlan, NoPlan                    *provision.PlanSummary
	Drift                                      []provision.PlannedChange
	Changes                                    []change
	Waits, NoWaits                             []wait
	Problems                                   []problem
	Kept                                       map[string]string
	Operations                                 []string
	Runs                                       []store.Provision
	States, WorkspaceStates, NoStates, Actions []string
}

func newSamples() samples {
	s := samples{
		States: provisionList{}.Statuses(), WorkspaceStates: workspaceStates, Actions: []string{"lock_workspace"},
		Kept: map[string]string{"workspace": "x"}, Operations: append(texts(provision.Operations), "of_a_newer_agent"),
		Runs:     []store.Provision{{Workspace: "acme/prod", Operation: "apply"}, {Operation: "inspect"}},
		Statuses: statuses,
		People:   []actor{actorOf("", nil), actorOf("Ada <b>", nil), actorOf("Ada", uuid.Nil), actorOf("", uuid.Nil), {Me: true}},
		Pagers:   []pager{{}, {First: "/"}, {Next: "/", Searched: 500, Thing: "run"}, {First: "/", Next: "/"}},
		Refusal:  &store.RefusedError{Code: "PT422", Reason: "bad_email", Message: "p_email: an e-mail address is needed", Hint: "Enter one, such as ada@example.com."},
		Problems: []problem{{"config_snapshot.terraform_vars.size", "must be a number"}, {"", "The configuration is not JSON."}},
	}
	s.EmptyPlan, s.Plan = &provision.PlanSummary{}, &provision.PlanSummary{Add: 2, Change: 1, Destroy: 1, Replace: 1, Forget: 1, Import: 1, Move: 1, Truncated: 3}
	for _, action := range append(diffOrder, "of_a_newer_engine") {
		s.Plan.Resources = append(s.Plan.Resources, provision.PlannedChange{Address: "terraform_data." + action, Action: action})
	}
	s.Plan.Resources[1].Reason, s.Plan.Resources[6].From, s.Plan.Resources[5].ID = "replace_because_tainted", "terraform_data.old", "i-7"
	s.Plan.Resources[1].Truncated = 2
	s.Plan.Resources[1].Attributes = []provision.AttributeChange{
		{Path: "ami", Before: json.RawMessage(`"ami-1"`), After: json.RawMessage(`"ami-2"`), Replaces: true}, {Path: "id", Before: json.RawMessage(`"i-7"`), Unknown: true},
		{Path: "password", Sensitive: true}, {Path: "user_data", Long: true}, {Path: "tags", After: json.RawMessage(`{"a": 1}`)}, {Path: "note", Before: json.RawMessage(`"two\nlines"`)},
	}
	s.Drift = []provision.PlannedChange{{Address: "aws_s3_bucket.a", Action: "delete"}, {Address: "aws_s3_bucket.b", Action: "update"}, {Address: "aws_s3_bucket.c", Action: "create"}}
	s.Changes = []change{
		{"create", "size", shownValue{}, shownValue{Text: "3"}}, {"delete", "region", shownValue{Text: `"eu-1"`}, shownValue{}},
		{"update", "password", shownValue{Sealed: true}, shownValue{Sealed: true, Other: true}}, {"update", "key", shownValue{Text: "1"}, shownValue{Hidden: true}},
	}
	s.LogLines = []logLine{{"STDOUT", false, "1", "12:00:00", "Apply complete!"}, {"STDERR", true, "2", "12:00:01", "Error: <b>no such thing</b>"}, {"SYSTEM", false, "3", "12:00:02", "The agent was lost."}, {"SYSTEM", true, "4", "", "The run failed."}}
	s.Log = logView{URL: "/log"}
	s.Stages = []stageRow{{Attempt: 1, Stages: []stageView{{Key: "1-queued", Stage: "queued", State: "done", Took: time.Second}, {Key: "1-init", Stage: "init", State: "failed", Took: 75 * time.Second}}},
		{Attempt: 2, Stages: []stageView{{Key: "2-plan", Stage: "plan", State: "running", Took: time.Minute}, {Key: "2-approval", Stage: "approval", State: "waiting"}, {Stage: "apply", State: "ahead"}, {Stage: "done", State: "ahead"}}}}
	s.Abouts = []*provision.About{nil, {Provisioner: "terraform", Icon: "network"}, {Provisioner: "script", Icon: "server"}, {Provisioner: "manual", Icon: "of-no-kind"}, {Provisioner: "machine", Icon: "people"},
		{Provisioner: "terraform", Icon: "database"}, {Provisioner: "terraform", Icon: "cloud"}, {Provisioner: "terraform", Icon: "container"}, {Provisioner: "terraform", Icon: "cluster"}}
	percent := 40
	s.Steps = []stepGroup{
		{Machine: "machine.web-1", Steps: []stepView{{store.Step{Label: "Creating VM from template", State: "done"}, 12 * time.Second}, {store.Step{Label: "Waiting for <network>", State: "running", Percent: &percent}, time.Minute}, {store.Step{Label: "Running commands", State: "waiting"}, 0}}},
		{Steps: []stepView{{store.Step{Label: "Making the network", State: "failed"}, 3 * time.Second}}},
	}
	s.Policies = []store.Policy{{}, {Approvers: "admin"}, {FourEyes: true}, {Approvers: "admin", FourEyes: true}}
	now := time.Now()
	s.Clusters = []clusterView{{}, {FleetCluster: store.FleetCluster{ClusterHead: store.ClusterHead{LastSeenAt: &now}}}, {FleetCluster: store.FleetCluster{ClusterHead: store.ClusterHead{Name: "prod"}, Slots: 4, Busy: 3}, Outdated: 2}}
	s.Loads = []load{{}, coresLoad(store.Load{Cores: 32, CoresUsed: 13.4, CoresNew: 4}), memoryLoad(store.Load{MemoryMiB: 65536, MemoryUsed: 62000, MemoryNew: 9000}), storageLoad(store.Storage{SizeGiB: 1800, FreeGiB: 812}), *quotaLoad("machines", 12, new(10))}
	vm, address, status, number := 101, "10.0.0.10", "running", int64(7)
	s.Reservations = []store.Reservation{
		{Name: "ada", Workspace: "acme/class", Pool: "lab", Node: "pve2", Cores: 2, MemoryMiB: 4096, VMID: &vm, Address: &address, Why: "pve2 has 75 points, pve1 has 50 points", Machine: &uuid.UUID{1}, Status: &status, Number: &number},
		{Name: "<b>", Workspace: "acme/class", Pool: "lab", Node: "<i>", Cores: 1, MemoryMiB: 512, Why: "<u>"},
	}
	s.Install = newInstallation("http://trellis.example", "prod")
	s.Sealed = newSealedOutput("password", "age", &requester{Recipient: "age1", Fingerprint: "SHA256:abc", Name: "Ada"})
	s.SealedHelp = newSealedHelp(s.Sealed.To, 12, true)
	s.Flashes = []*flash{{"success", "run-queued", []string{"12"}}, {"info", "version-scan", []string{"v1.2.0"}}, {"error", "refused", []string{"p_email: missing", "enter one"}}}
	s.Sources = []provision.TemplateSource{{Repo: "https://git.example/network"}, {Repo: "https://git.example/network", Path: "modules/vpc"}}
	s.Outputs = outputsOf(&store.Provision{Outputs: map[string]provision.Output{
		"list": {Value: json.RawMessage(`["a", {"b": 1}]`)}, "omitted": {Omitted: true}, "sealed": {Sensitive: true, Sealed: "age"}, "sensitive": {Sensitive: true}, "text": {Value: json.RawMessage(`"two\nlines"`)},
	}})
	s.Failures = []failure{{Code: "agent_lost"}, {Code: "plan_failed", Message: "Error: no <b>such</b> thing\n\n  on main.tf line 3"}, {Code: "of_a_newer_agent", Message: "why"}}
	for _, reason := range []string{"workspace_locked", "no_agent", "awaits_approval", "queued_behind", "not_due", "of_a_newer_database"} {
		s.Waits = append(s.Waits, wait{Reason: reason, Message: "the reason is " + reason, Number: int64(len(s.Waits) % 2), Run: "/", Workspace: "/", Cluster: "/"})
	}
	for _, ago := range []time.Duration{0, time.Minute, 50 * time.Hour, -90 * time.Minute} {
		s.Times = append(s.Times, time.Now().Add(-ago))
	}
	return s
}

// Name lets the page read it.
func (l statusLook) Name() string { return l.name }

// Each file of components/ has a section on the page, and each status is there.
func TestComponents(t *testing.T) {
	t.Parallel()
	page := shownComponents(t)
	files, err := fs.Glob(pageFiles, "components/*.html")
	if err != nil || len(files) == 0 {
		t.Fatalf("components/*.html = %v, %v, want them all", files, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(path.Base(file), ".html")
		section := regexp.MustCompile(`(?s)<section id="component-` + name + `".*?</section>`).FindString(page)
		if section == "" {
			t.Errorf("testdata/components.html does not show %s", file)
		}
	}
	defined, shown := templatesOf(t, files...), templatesOf(t, "testdata/components.html")
	reached := map[string]bool{}
	var reach func(body string)
	reach = func(body string) {
		for _, m := range regexp.MustCompile(`\{\{-? ?template "([a-z-]+)"`).FindAllStringSubmatch(body, -1) {
			if !reached[m[1]] {
				reached[m[1]] = true
				reach(defined[m[1]])
			}
		}
	}
	reach(shown["main"])
	for name := range defined {
		if !reached[name] {
			t.Errorf("testdata/components.html does not show the template %s", name)
		}
	}
	for _, s := range statuses {
		if !strings.Contains(page, `data-status="`+s.name+`"`) {
			t.Errorf("testdata/components.html does not show the status %s", s.name)
		}
	}
}

// templatesOf are the templates that files define, by name.
func templatesOf(t *testing.T, files ...string) map[string]string {
	t.Helper()
	bodies := map[string]string{}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range strings.Split(string(source), `{{define "`)[1:] {
			name, body, _ := strings.Cut(part, `"`)
			bodies[name] = body
		}
	}
	return bodies
}

// rendered is one template with a value.
func rendered(t *testing.T, name string, value any) string {
	t.Helper()
	p, err := loadPages()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := p.byName["error"].ExecuteTemplate(&b, name, value); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// The words of a run's states are the same wherever a person reads them.
func TestStatusWords(t *testing.T) {
	t.Parallel()
	for state, want := range map[string]string{
		"QUEUED": "Queued", "PROCESSING": "Running", "AWAITING_APPROVAL": "Needs approval", "SUCCESS": "Succeeded", "FAILED": "Failed", "CANCELLED": "Cancelled",
		"OF_A_NEWER_AGENT": "Of a newer agent",
	} {
		if got := rendered(t, "status-word", state); got != want {
			t.Errorf("the word of %s = %q, want %q", state, got, want)
		}
	}
	for _, s := range statuses {
		if icons[s.icon] == "" || !strings.Contains(" still good bad warn busy ", " "+s.tone+" ") {
			t.Errorf("the status %s has icon %q and tone %q, want ones that exist", s.name, s.icon, s.tone)
		}
	}
}

// The page passes accessibility rules in both themes and both widths. A developer
// sees it with TENDRIL_TEST_ARTIFACTS=dist/screenshots.
func TestComponentsInABrowser(t *testing.T) {
	t.Parallel()
	page := shownComponents(t)
	mux := http.NewServeMux()
	mux.Handle("GET /assets/", assetHandler())
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'")
		_, _ = w.Write([]byte(page))
	})
	mux.HandleFunc("GET /components.css", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, "testdata/components.css") })
	mux.HandleFunc("GET /log", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	tab := browsertest.Open(t, server.URL)
	for _, look := range browsertest.Looks() {
		tab.Look(look)
		tab.NoOverflow()
		tab.Axe()
		tab.Screenshot("components")
	}
}
