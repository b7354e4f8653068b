package e2e

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/e2e/site"
)

// A platform team reads an agent by its port and its log: the metrics of a run
// are there until the agent ends, each line that concerns a run says of which, and
// no secret is in either.
func TestAgentIsObserved(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	a := s.NewAgent("one", 2, "[health]\nlisten = \"127.0.0.1:0\"\n")
	a.Set("TENDRIL_LOG_FORMAT", "json")
	a.Set("TENDRIL_LOG_LEVEL", "debug")
	if role, _, straight := strings.Cut(strings.TrimPrefix(s.QueueURL, "postgres://"), ":test@"); straight {
		s.Exec(t, "ALTER ROLE "+role+" PASSWORD 'hunter2'")
	}
	url := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(url, []byte(strings.Replace(s.QueueURL, ":test@", ":hunter2@", 1)+"\n"), 0o440); err != nil {
		t.Fatal(err)
	}
	a.Set("TENDRIL_QUEUE_URL", "") // none
	a.Set("TENDRIL_QUEUE_URL_FILE", url)
	a.Start()
	good := s.Template("meadow", map[string]string{"main.tf": `resource "terraform_data" "a" {}`})
	bad := s.Template("thicket", map[string]string{"main.tf": `
resource "terraform_data" "a" {
  provisioner "local-exec" { command = "exit 3" }
}`})
	if id := s.DeployTemplate(good, "acme/prod", nil); s.AwaitEnd(id) != "SUCCESS" {
		t.Fatalf("the run: %s", s.Message(id))
	}
	if id := s.DeployTemplate(bad, "acme/dev", nil); s.AwaitEnd(id) != "FAILED/apply_failed" {
		t.Fatalf("the run: %s", s.Message(id))
	}
	a.AwaitNoSpools()
	address := regexp.MustCompile(`"address":"([^"]+)"`).FindStringSubmatch(a.Out.String())
	if address == nil {
		t.Fatalf("the agent does not say where it serves:\n%s", a.Out)
	}
	var metrics string
	a.Await("to have its slots free", func() bool { // the spool of a run goes a moment before that
		metrics = get(t, "http://"+address[1]+"/metrics")
		return strings.Contains(metrics, "\ntendril_slots_busy 0\n")
	})
	for _, want := range []string{
		`tendril_claims_total{operation="apply"} 2`, `tendril_queue_wait_seconds_count 2`, `tendril_slots 2`, `tendril_slots_busy 0`, `tendril_spool_bytes 0`,
		`tendril_provisions_total{code="",operation="apply",status="SUCCESS"} 1`, `tendril_provisions_total{code="apply_failed",operation="apply",status="FAILED"} 1`,
		`tendril_stage_duration_seconds_count{stage="checkout"} 2`, `tendril_stage_duration_seconds_count{stage="validate"} 2`, `tendril_stage_duration_seconds_count{stage="engine"} 2`,
		`tendril_stage_duration_seconds_count{stage="init"} 2`, `tendril_stage_duration_seconds_count{stage="plan"} 2`, `tendril_stage_duration_seconds_count{stage="apply"} 2`,
	} {
		if !strings.Contains(metrics, "\n"+want+"\n") {
			t.Errorf("GET /metrics lacks %s:\n%s", want, metrics)
		}
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		metrics += get(t, "http://"+address[1]+path)
	}
	a.Terminate()
	wantNoSecrets(t, s, "the port", metrics)
	wantNoSecrets(t, s, "the log", a.Out.String())
	for _, word := range []string{"acme", "meadow", "thicket", s.Git.URL} {
		if strings.Contains(metrics, word) {
			t.Errorf("the port says %q, want no name of a workspace or a repository", word)
		}
	}
	wantRunsNamed(t, a.Out.String(), map[string]string{"acme/prod": "SUCCESS", "acme/dev": "FAILED"})
}

// wantRunsNamed parses a log in JSON: what concerns a run has all three of its
// names, and each of these workspaces had one that began and ended.
func wantRunsNamed(t *testing.T, log string, ended map[string]string) {
	t.Helper()
	began := map[string]bool{}
	for lines := bufio.NewScanner(strings.NewReader(log)); lines.Scan(); {
		var line map[string]any
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Errorf("the log holds %q, want JSON: %v", lines.Text(), err)
			continue
		}
		number, isNumber := line["provision"].(float64)
		workspace, _ := line["workspace"].(string)
		claim, _ := line["claim"].(string)
		if all := isNumber && number > 0 && workspace != "" && len(claim) == 36; !all && (line["provision"] != nil || line["workspace"] != nil || line["claim"] != nil) {
			t.Errorf("a line has only some of provision, workspace and claim: %s", lines.Text())
		}
		switch line["msg"] {
		case "started":
			began[workspace] = true
		case "ended":
			if line["status"] != ended[workspace] {
				t.Errorf("the log says that %q ended as %v, want %q", workspace, line["status"], ended[workspace])
			}
			delete(ended, workspace)
		case "registered", "draining", "drained", "nothing more is claimed", "serving health and metrics":
		default:
			if !isNumber && !strings.Contains(lines.Text(), "cache") {
				t.Errorf("a line names no run: %s", lines.Text())
			}
		}
	}
	if len(ended) > 0 || !began["acme/prod"] || !began["acme/dev"] {
		t.Errorf("the log misses ends of %v, and has the beginnings of %v", ended, began)
	}
}

// An agent whose port is taken does not start without it.
func TestPortOfTheAgentIsTaken(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() //nolint:errcheck // nothing was accepted
	s := site.New(t)
	a := s.NewAgent("one", 1, "[health]\nlisten = \""+listener.Addr().String()+"\"\n").Start()
	code, out := a.Exit()
	if code != 1 || !strings.Contains(out, "has that port already; name a free one") {
		t.Errorf("tendril run = %d %q, want 1 and what to do about the port", code, out)
	}
	if _, err := os.Stat(a.Dir); !os.IsNotExist(err) {
		t.Errorf("the data directory is there (%v), want an agent that had not begun", err)
	}
}

func wantNoSecrets(t *testing.T, s *site.Site, where, text string) {
	t.Helper()
	for _, secret := range []string{s.Token, "tnd_", "postgres://", "hunter2"} {
		if strings.Contains(text, secret) {
			t.Errorf("%s holds %q", where, secret)
		}
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}
