package proxies

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/rpcqueue"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
	"github.com/tendril-run/tendril/internal/testkit/runlog"
)

// soon is how long it takes at most until an agent learns what happened. Its own poll is far
// longer, and so is the time between two heartbeats that are not held.
const soon = time.Second

// ending is how long a cancelled run may take to end, which an engine needs some of.
const ending = 5 * time.Second

// way is what stands between agents and a server.
type way struct {
	// url is what agents are given, and env what their environment has besides.
	url string
	env map[string]string
	// settled reports whether the agent has found out how long a call may wait; nil: any time.
	settled func() bool
}

// ways are all of them; each is started in front of a trellis serve that will answer at an
// address, by TLS where tls is set.
func ways() map[string]struct {
	tls   bool
	start func(t *testing.T, server string) way
} {
	type kind = struct {
		tls   bool
		start func(t *testing.T, server string) way
	}
	ours := func(p *reverse) kind {
		return kind{start: func(t *testing.T, server string) way {
			return way{url: "https://" + p.start(t, server), settled: p.settled}
		}}
	}
	debian := func(start func(*testing.T, string) string) kind {
		return kind{start: func(t *testing.T, server string) way { return way{url: "https://" + start(t, server)} }}
	}
	return map[string]kind{
		"nginx":               debian(nginx),
		"HAProxy":             debian(haproxy),
		"HTTP/1.1, buffering": ours(&reverse{buffers: true}),
		"gives up after 20 s": ours(&reverse{patience: 20 * time.Second}),
		"hangs up after 5 s":  ours(&reverse{patience: 5 * time.Second, hangsUp: true}),
		"CONNECT":             {tls: true, start: connect},
	}
}

// connect has agents reach a name by way of a tunnel alone: what is in the server's certificate,
// and what only the tunnel can find.
func connect(t *testing.T, server string) way {
	p := &tunnel{name: "example.com:443", address: server}
	proxy := p.start(t)
	t.Cleanup(func() {
		if n := p.connected.Load(); n == 0 || n > 20 {
			t.Errorf("connections through the tunnel = %d, want a few that are kept", n)
		}
	})
	return way{url: "https://example.com", env: map[string]string{"HTTPS_PROXY": proxy}}
}

// serve runs trellis serve at an address, and waits until it listens.
func serve(t *testing.T, w *queuetest.World, address string, flags ...string) (metrics string, pid int) {
	t.Helper()
	metrics = site.Address(t)
	argv := append([]string{site.Program("trellis"), "serve", "--listen", address, "--metrics-listen", metrics}, flags...)
	pid = run(t, address, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "GORACE=atexit_sleep_ms=0", "TRELLIS_DATABASE_URL=" + w.URL}, argv...)
	return metrics, pid
}

// largeAndLong makes a state of some MiB, and then prints many lines and waits for a file.
const largeAndLong = `
resource "terraform_data" "large" {
  input = join("", flatten([for i in range(20) : [for j in range(1000) : base64sha512("${i}/${j}")]]))
}
resource "terraform_data" "lines" {
  depends_on = [terraform_data.large]
  provisioner "local-exec" {
    command = "i=0; while [ $i -lt %d ]; do i=$((i + 1)); echo \"<$i>\"; done; while [ ! -e %s ]; do sleep 0.1; done"
  }
}
`

// lines is how many largeAndLong prints, leastState about how many bytes its state has.
const lines, leastState = 500, 3 << 20

const endless = `
resource "terraform_data" "endless" {
  provisioner "local-exec" { command = "echo \"wait$((6 * 7))ing\"; while :; do sleep 0.1; done" }
}
`

// An agent by token and one by key do all that agents do, whatever stands in between: they
// register, are told of work and of a cancel within the call that is held, and send log lines
// and a state.
func TestAgentsBehindProxies(t *testing.T) {
	t.Parallel()
	for name, kind := range ways() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := site.New(t)
			server := site.Address(t)
			w := kind.start(t, server)
			flags := []string{"--agent-url", w.url}
			if kind.tls {
				certificate, key := site.Certificate(t)
				flags = append(flags, "--tls-cert", certificate, "--tls-key", key)
			}
			l := &lab{Site: s, way: w, identity: s.IdentityFile()}
			l.metrics, _ = serve(t, s.World, server, flags...)
			s.QueueURL = w.url
			credentials := []string{"token", "key"}
			if os.Getenv("TENDRIL_TEST_FAULTS") != "all" { // one of them, drawn
				drawn := rand.IntN(len(credentials))
				credentials = credentials[drawn : drawn+1]
				t.Logf("by %s", credentials[0])
			}
			for _, by := range credentials {
				a := l.agent(by)
				a.Start()
				a.AwaitOutput("registered")
				if w.settled != nil {
					patience.Await(t, "the agent to find out how long a call may wait", w.settled)
				}
				l.work(t, by)
				a.Terminate()
			}
		})
	}
}

// lab is a site whose agents have a way to go.
type lab struct {
	*site.Site
	way
	metrics  string // of trellis serve: host and port
	identity string // the file
}

// agent configures an agent that polls far too seldom for what work expects.
func (l *lab) agent(by string) *site.Agent {
	l.T.Helper()
	a := l.NewAgent(by, 1, "")
	a.ManageState(l.identity)
	a.Set("TENDRIL_QUEUE_CA_FILE", l.Git.CAFile) // all certificates are the same
	a.Set("TENDRIL_QUEUE_POLL_INTERVAL", "10m")
	for key, value := range l.env {
		a.Set(key, value)
	}
	if by == "key" {
		a.Env = slices.DeleteFunc(a.Env, func(entry string) bool { return strings.HasPrefix(entry, "TENDRIL_API_TOKEN=") })
		a.Set("TENDRIL_JOIN_TOKEN", l.Text(l.T, "SELECT token FROM public.create_join_token($1)", l.Cluster))
	}
	return a
}

// work has the only agent do all that there is to do.
func (l *lab) work(t *testing.T, by string) {
	t.Helper()
	gate := filepath.Join(l.Keep, by)
	repo := l.Template(by, map[string]string{"main.tf": fmt.Sprintf(largeAndLong, lines, gate)})
	l.awaitHeld(t)
	id := l.DeployTemplate(repo, by, nil)
	l.AwaitLine(id, fmt.Sprintf("<%d>", lines))
	if got := l.Status(t, id); got != "PROCESSING" {
		t.Errorf("%s: the run is %s when its lines can be read, want PROCESSING: they are live", by, got)
	}
	l.wantWithin(t, id, soon, "started_at - created_at")
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := l.AwaitEnd(id); got != "SUCCESS" {
		t.Fatalf("%s: the run = %s: %s", by, got, l.Message(id))
	}
	wantInOrder(t, runlog.Printed(l.Log(t, id))) // and its rows are numbered 1…n
	if got := len(l.OpenState(t, by, 0, l.identity)); got < leastState {
		t.Errorf("%s: the state has %d bytes, want %d and more", by, got, leastState)
	}

	id = l.DeployTemplate(l.Template("endless-"+by, map[string]string{"main.tf": endless}), by+"-endless", nil)
	l.AwaitLine(id, "wait42ing")
	l.awaitHeld(t)
	l.Exec(t, "SELECT public.cancel_provision($1)", id)
	if got := l.AwaitEnd(id); got != "CANCELLED/cancelled" {
		t.Errorf("%s: the cancelled run = %s: %s", by, got, l.Message(id))
	}
	l.wantWithin(t, id, ending, "finished_at - cancel_requested_at")
}

// awaitHeld waits until trellis serve holds the agent's heartbeat.
func (l *lab) awaitHeld(t *testing.T) {
	t.Helper()
	patience.Await(t, "a call that is held", func() bool {
		response, err := http.Get("http://" + l.metrics + "/metrics")
		if err != nil {
			return false
		}
		defer response.Body.Close() //nolint:errcheck // only read
		body, err := io.ReadAll(response.Body)
		return err == nil && strings.Contains(string(body), "\ntrellis_held_calls 1\n")
	})
}

// wantWithin checks how long something took of a run, by the database's clock.
func (l *lab) wantWithin(t *testing.T, id uuid.UUID, limit time.Duration, what string) {
	t.Helper()
	var seconds float64
	if err := l.Conn.QueryRow(t.Context(), "SELECT extract(epoch FROM "+what+")::float8 FROM public.provisions WHERE id = $1", id).Scan(&seconds); err != nil {
		t.Fatal(err)
	}
	took := time.Duration(seconds * float64(time.Second)).Round(time.Millisecond)
	t.Logf("%s = %s", what, took)
	if took > patience.For(limit) {
		t.Errorf("%s = %s, want at most %s", what, took, limit)
	}
}

// wantInOrder checks the lines that largeAndLong has printed.
func wantInOrder(t *testing.T, printed string) {
	t.Helper()
	var want strings.Builder
	for n := range lines {
		fmt.Fprintf(&want, "<%d>", n+1)
	}
	if printed != want.String() {
		t.Errorf("the log has %d characters of the %d that were printed, or in another order", len(printed), want.Len())
	}
}

// A signature is for the host that the agent knows. HAProxy passes that on; nginx names the
// server instead, which --agent-url makes up for. A token needs neither.
func TestSignaturesBehindProxies(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		start   func(*testing.T, string) string
		flags   func(url string) []string
		refused bool
	}{
		"nginx":                      {nginx, nil, true},
		"nginx, --agent-url":         {nginx, func(url string) []string { return []string{"--agent-url", url} }, false},
		"nginx, --public-url":        {nginx, func(url string) []string { return []string{"--public-url", url} }, false},
		"HAProxy":                    {haproxy, nil, false},
		"HAProxy, other --agent-url": {haproxy, func(string) []string { return []string{"--agent-url", "https://trellis.example"} }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := queuetest.NewWorld(t)
			server := site.Address(t)
			url := "https://" + c.start(t, server)
			var flags []string
			if c.flags != nil {
				flags = c.flags(url)
			}
			serve(t, w, server, flags...)
			certificate, _ := site.Certificate(t)
			for _, o := range []rpcqueue.Options{{Token: w.Token, Agent: queuetest.NewAgent("one")}, {Key: w.Join(t, w.Token, "two"), Agent: queuetest.NewAgent("two")}} {
				o.URL, o.CAFile = url, certificate
				q, err := rpcqueue.New(o)
				if err != nil {
					t.Fatal(err)
				}
				defer q.Close()
				_, err = q.Register(t.Context())
				if o.Key == nil || !c.refused {
					if err != nil {
						t.Errorf("Register() = %v, want nil", err)
					}
					continue
				}
				if e, ok := errors.AsType[*queue.Error](err); !ok || e.Reason != "signature_refused" {
					t.Errorf("Register() by key = %v, want signature_refused", err)
				}
			}
		})
	}
}
