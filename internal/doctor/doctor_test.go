package doctor_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/config"
	"github.com/tendril-run/tendril/internal/doctor"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

func TestNothingIsWrong(t *testing.T) {
	t.Parallel()
	p := healthy(t)
	p.Config.Engine.Kind = "terraform"
	report := p.examine(t)
	// A machine that is too slow for the limits is healthy all the same.
	slow := func() bool {
		return slices.ContainsFunc(report.Checks, func(r doctor.Result) bool {
			return strings.Contains(r.Message, "took longer than") || strings.Contains(r.Message, "no answer within")
		})
	}
	for limit := patience.Begin(time.Minute); slow() && !limit.Over(); {
		report = p.examine(t)
	}
	if report.Failed() {
		t.Errorf("Examine(healthy) = %+v, want nothing failed", report)
	}
	for name, words := range map[string]string{
		"configuration": `agent "one"`, "data_dir": p.Config.DataDir, "disk": "free", "queue": "PostgreSQL", "token": `cluster "prod"`,
		"contract": "contract", "clock": "agree", "name": "no other", "wakes": "arrive", "engine": "terraform", "allowlist": "1 pattern",
		"git": "lets the agent in", "backend": "files in", "secrets": "no file", "metadata": "metadata",
	} {
		want(t, report, name, doctor.OK, words)
	}
}

// What templates can take the machine's role from is said as what it is: no fault,
// and nothing to pass over.
func TestMetadataServiceInReach(t *testing.T) {
	t.Parallel()
	service := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(service.Close)
	p := healthy(t)
	p.Metadata = service.Listener.Addr().String()
	want(t, p.examine(t), "metadata", doctor.Warn, p.Metadata, "networkPolicy.strict")
}

func TestWithoutAConfigurationNothingIsLookedAt(t *testing.T) {
	t.Parallel()
	_, err := config.Load("", []string{"TENDRIL_SLOTS=99"})
	report := doctor.Examine(t.Context(), doctor.Options{ConfigErr: err})
	want(t, report, "configuration", doctor.Fail, "queue.url: missing", "99", "queue.token_file: missing")
	for _, check := range report.Checks[1:] {
		if check.Status != doctor.Skipped || !strings.Contains(check.Message, "configuration") {
			t.Errorf("%s = %s (%s), want it skipped for the configuration", check.Name, check.Status, check.Message)
		}
	}
	var text strings.Builder
	if err := report.WriteText(&text, doctor.Style{}); err != nil || strings.Contains(text.String(), "disk") {
		t.Errorf("WriteText() = %v, %s, want the configuration only", err, text.String())
	}
}

// Everything that is asked over a network takes the connection and says nothing.
// What hangs in a system call, as a network file system that has gone does it, is
// left behind.
func TestEverythingHangs(t *testing.T) {
	t.Parallel()
	p := machine(t)
	p.File = p.Config.DataDir + "/agent.toml"
	if err := syscall.Mkfifo(p.File, 0o600); err != nil {
		t.Fatal(err)
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	p.Config.Queue.URL = "postgres://agent:s3cret-word@" + silent.Addr().String() + "/x"
	p.Config.Policy.Repos = []string{"https://" + silent.Addr().String() + "/a/b"}
	p.Config.Engine.Kind, p.Config.Engine.Install, p.Config.Engine.Version, p.Config.Engine.MirrorURL = "terraform", true, "99.0.1", "http://"+silent.Addr().String()
	p.secrets = []string{"s3cret-word"}
	report := p.examine(t)
	want(t, report, "queue", doctor.Fail, "in time")
	want(t, report, "token", doctor.Skipped, "queue")
	want(t, report, "contract", doctor.Skipped, "token")
	want(t, report, "git", doctor.Fail)
	want(t, report, "engine", doctor.Fail, "engine.mirror_url")
	want(t, report, "secrets", doctor.Fail, "gave no answer within")
	want(t, report, "disk", doctor.OK)
	writer, err := os.OpenFile(p.File, os.O_WRONLY, 0) // lets the reader go
	if err != nil {
		t.Fatal(err)
	}
	_ = writer.Close()
}

// What others say may hold a secret: a library that shows the URL it was given,
// a server that repeats a header.
func TestSecretsInOthersWords(t *testing.T) {
	t.Parallel()
	p := machine(t)
	sum := sha256.Sum256([]byte(p.Token))
	p.Config.Queue.APIKey = "s3cret-key"
	p.Config.State.Config = map[string]map[string]string{"pg": {"conn_str": "s3cret-state"}}
	p.secrets = []string{"s3cret/word", "s3cret-key", "s3cret-state", hex.EncodeToString(sum[:])}
	p.Config.Queue.ListenURL = "postgres://x:s3cret%2Fword@db.example/x"
	p.Git = func(context.Context) (job.Git, error) {
		return job.Git{}, errors.New(strings.Join(append(p.secrets, p.Token), " "))
	}
	want(t, p.examine(t), "git", doctor.Fail, "[hidden] [hidden] [hidden]")
}
