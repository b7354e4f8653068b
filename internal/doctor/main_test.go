package doctor_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/config"
	"github.com/tendril-run/tendril/internal/doctor"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/pgqueue"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
	"github.com/tendril-run/tendril/internal/testkit/wiretest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// patient is all that an agent needs, each test's own, to be broken by it.
type patient struct {
	*queuetest.World
	doctor.Options
	repos *gittest.Server
	// secrets are what no report may show, beside the token.
	secrets []string
}

// healthy is a patient without a fault, but for an engine.
func healthy(t *testing.T) *patient {
	t.Helper()
	p := machine(t)
	p.World = queuetest.NewWorld(t)
	wire := wiretest.New(t, p.URL)
	p.Config.Queue.URL, p.Config.Queue.Token = wire.URL(p.AgentURL(t)), config.NewSecret(p.Token)
	return p
}

// again is another patient with the same parts, for faults that leave them as
// they are.
func (p *patient) again(*testing.T) *patient {
	c := *p
	c.Open, c.Git = c.open, c.git
	return &c
}

// machine is a patient that is healthy apart from its queue.
func machine(t *testing.T) *patient {
	t.Helper()
	p := &patient{World: &queuetest.World{Token: "tnd_" + strings.Repeat("m", 43)}, repos: gittest.NewServer(t)}
	p.repos.Repo("template", gittest.Text(map[string]string{"main.tf": ""}), "v1")
	c := config.Default()
	c.Name, c.DataDir = "one", filepath.Join(pgtest.Dir(t), "data")
	if err := os.Mkdir(c.DataDir, 0o700); err != nil {
		t.Fatal(err)
	}
	c.Queue.URL, c.Queue.Token = "postgres://127.0.0.1:1/none", config.NewSecret(p.Token)
	c.Policy.Repos = []string{p.repos.URL + "/template"}
	c.Git.CAFile = p.repos.CAFile
	c.Engine.Kind, c.Engine.Install = "tofu", false // which is not here, so that none is started
	p.Options = doctor.Options{Version: "test", Config: c, Open: p.open, Git: p.git,
		Metadata: "127.0.0.1:1"} // where nobody listens
	return p
}

func (p *patient) open(a queue.Agent) (queue.Queue, error) {
	return pgqueue.New(context.Background(), pgqueue.Options{
		URL: p.Config.Queue.URL, ListenURL: "off", Token: p.Config.Queue.Token.Reveal(), Agent: a, Log: slog.New(slog.DiscardHandler),
	})
}

func (p *patient) git(context.Context) (job.Git, error) { return p.Config.Settings().Git, nil }

// examine returns the report, which never shows a secret and never takes long.
func (p *patient) examine(t *testing.T) doctor.Report {
	t.Helper()
	began := time.Now()
	report := doctor.Examine(t.Context(), p.Options)
	if took := time.Since(began); took > 15*time.Second && took > patience.For(15*time.Second) {
		t.Errorf("Examine() took %s, want less than 15 s", took)
	}
	said := fmt.Sprintf("%+v", report)
	for _, secret := range append(p.secrets, p.Token) {
		if strings.Contains(said, secret) {
			t.Errorf("the report shows the secret %q: %s", secret, said)
		}
	}
	return report
}

// find returns one check of a report.
func find(t *testing.T, r doctor.Report, name string) doctor.Result {
	t.Helper()
	for _, check := range r.Checks {
		if check.Name == name {
			return check
		}
	}
	t.Fatalf("the report has no check %q: %+v", name, r)
	return doctor.Result{}
}

// want holds one check against a status and words of its sentence and its action.
func want(t *testing.T, r doctor.Report, name string, status doctor.Status, words ...string) {
	t.Helper()
	got := find(t, r, name)
	if got.Status != status {
		t.Errorf("%s = %s (%s), want %s", name, got.Status, got.Message, status)
	}
	for _, word := range words {
		if !strings.Contains(got.Message+" → "+got.Action, word) {
			t.Errorf("%s says %q → %q, want %q in it", name, got.Message, got.Action, word)
		}
	}
	if (got.Action == "") == (status == doctor.Fail || status == doctor.Warn) {
		t.Errorf("%s is %s and its action is %q", name, status, got.Action)
	}
}
