package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/runlog"
)

// cutting is a proxy that loses the answer to the first POST, after it has come,
// and cuts each event stream after some bytes: the first within its first event,
// however soon the server is to end it.
type cutting struct {
	posts, streams atomic.Int32
	to             atomic.Pointer[url.URL] // where the server is now
}

const firstCut, cutAfter = 40, 600

// serves begins a server before the database, and leads there.
func (c *cutting) serves(t *testing.T, databaseURL string) *session {
	t.Helper()
	serve := begin(t, "serve", "--database-url", databaseURL, "--listen", "127.0.0.1:0")
	serve.await(t, "serving people and agents")
	to, err := url.Parse(regexp.MustCompile(`http://[0-9.:]+`).FindString(serve.said.String()))
	if err != nil {
		t.Fatal(err)
	}
	c.to.Store(to)
	return serve
}

func (c *cutting) handler(t *testing.T) http.Handler {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &httputil.ReverseProxy{
		Transport: transport, ErrorLog: log.New(io.Discard, "", 0), // of what is cut on purpose
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(c.to.Load()) },
		ModifyResponse: func(r *http.Response) error {
			if r.Request.Method == http.MethodPost && c.posts.Add(1) == 1 {
				return errors.New("lost")
			}
			if strings.HasPrefix(r.Header.Get("Content-Type"), "text/event-stream") {
				after := int64(cutAfter)
				if c.streams.Load() == 0 {
					after = firstCut
				}
				r.Body = struct {
					io.Reader
					io.Closer
				}{io.MultiReader(io.LimitReader(r.Body, after), &cut{c}), r.Body}
			}
			return nil
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
}

// cut is where a stream breaks off.
type cut struct{ counted *cutting }

func (c *cut) Read([]byte) (int, error) {
	c.counted.streams.Add(1)
	return 0, io.ErrUnexpectedEOF
}

// twenty offers the agent a template of twenty steps, of which the third waits for a
// file.
func twenty(t *testing.T, dir, gate string) (url string) {
	t.Helper()
	repo := gittest.NewRepo(t)
	repo.Tag("v1", repo.Commit(gittest.Text(map[string]string{"main.tf": fmt.Sprintf(`resource "terraform_data" "steps" {
  provisioner "local-exec" {
    command = "for i in $(seq 20); do until [ $i -lt 3 ] || [ -e %s ]; do sleep 0.1; done; echo \"step $i of 20\"; sleep 0.2; done"
  }
}
`, gate)})))
	at := filepath.Join(dir, "templates", "steps.git")
	if err := os.CopyFS(at, os.DirFS(repo.Dir)); err != nil {
		t.Fatal(err)
	}
	return "file://" + at
}

// A network that cuts streams and loses the answer to a deploy, and a server that
// is started again while a log is followed, cost no line and make nothing twice.
func testFollowThroughTrouble(t *testing.T, dir string, runtime instance.Runtime) {
	t.Parallel()
	cuts := &cutting{}
	serve := cuts.serves(t, runtime.DatabaseURL)
	proxy := httptest.NewServer(cuts.handler(t))
	t.Cleanup(proxy.Close)
	gate := filepath.Join(pgtest.Dir(t), "go") // that whoever runs Terraform can look for
	env := []string{"TRELLIS_URL=" + proxy.URL, "TRELLIS_TOKEN=" + runtime.APIToken}
	deployed := trellisEnv(t, env, "deploy", "--repo", twenty(t, dir, gate), "--version", "v1", "--workspace", "trouble", "-o", "json")
	deployed.want(t, "deploy", exitOK)
	number := regexp.MustCompile(`"number": (\d+)`).FindStringSubmatch(deployed.out)[1]
	if list := trellisEnv(t, env, "status", "-o", "json"); strings.Count(list.out, `"workspace": "trouble"`) != 1 || cuts.posts.Load() != 2 {
		t.Errorf("a deploy whose answer was lost was asked for %d times and has made %s, want two times and one provision", cuts.posts.Load(), list.out)
	}
	follower := beginEnv(t, env, "logs", number, "--follow")
	follower.await(t, "step 2 of 20")
	serve.signal(os.Interrupt)
	serve.end(t)
	cuts.serves(t, runtime.DatabaseURL)
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code := follower.end(t); code != exitOK {
		t.Errorf("logs --follow through a restart = %d, want 0\n%s", code, follower.said)
	}
	if cuts.streams.Load() == 0 {
		t.Error("no stream was cut: nothing was tried")
	}
	whole := trellisEnv(t, env, "logs", number)
	whole.want(t, "logs", exitOK, "step 20 of 20")
	if got := follower.said.String(); !strings.HasPrefix(got, whole.out) {
		t.Errorf("what was followed is\n%s\nwant the log, whole and once:\n%s", got, whole.out)
	}
	jsons := trellisEnv(t, env, "logs", number, "-o", "json")
	var text strings.Builder
	for line := range strings.Lines(jsons.out) {
		var piece struct{ Text string }
		if err := json.Unmarshal([]byte(line), &piece); err != nil {
			t.Fatalf("logs -o json has the line %q: %v", line, err)
		}
		text.WriteString(piece.Text)
	}
	if got := text.String(); runlog.Plain(got) != whole.out || got == whole.out {
		t.Errorf("logs -o json has the text %q, want %q and the engine's colours", got, whole.out)
	}
}
