//go:build kube

package kubejobs

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
)

// counted is a template that tells of each apply.
const counted = `
variable "run" {}
variable "url" {}
resource "terraform_data" "it" {
  triggers_replace = [var.run]
  provisioner "local-exec" { command = "wget -qO- ${var.url}/${var.run} && sleep ${1 + var.run % 3}" }
}
`

// applies counts, by run, how often one has begun.
type applies struct {
	mu    sync.Mutex
	begun map[int]int
	url   string
}

func countApplies(t *testing.T) *applies {
	t.Helper()
	a := &applies{begun: map[int]int{}}
	listener, err := net.Listen("tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.Atoi(r.URL.Path[1:])
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.begun[n]++
	})}}
	server.Start()
	t.Cleanup(server.Close)
	a.url = server.URL
	return a
}

func (a *applies) of(n int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.begun[n]
}

// Runs, while dispatcher, pods, kubelet and the database's connections are killed at random: each
// has an end, none is applied twice, what succeeded was applied, and nothing is left in Kubernetes.
func TestRunsSurviveFaults(t *testing.T) {
	runs, _ := strconv.Atoi(os.Getenv("TENDRIL_TEST_RUNS"))
	if runs == 0 {
		runs = 24
	}
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("TENDRIL_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	t.Logf("TENDRIL_SEED=%d TENDRIL_TEST_RUNS=%d", seed, runs)
	dice := rand.New(rand.NewPCG(seed, 1))
	w := newWorld(t)
	w.Exec(t, "UPDATE tendril.settings SET lease = interval '20 s'") // a lost pod's run ends within the test
	count := countApplies(t)
	a := w.dispatcher("dispatcher", 6, `start_timeout = "60s"`)
	a.Set("TENDRIL_DRAIN_TIMEOUT", "10s")
	a.Start().AwaitOutput("registered")
	repo := w.template("counted", map[string]string{"main.tf": counted})
	ids := make([]uuid.UUID, runs)
	for n := range ids {
		ids[n] = w.DeployTemplate(repo, fmt.Sprintf("w%d", n%12), map[string]any{"run": n, "url": count.url})
	}
	faults := map[string]int{}
	for !w.over(t) {
		var fault string
		switch dice.IntN(5) {
		case 0:
			fault = "dispatcher killed"
			a.Kill()
			a.Start()
		case 1:
			if pods := w.names("pods"); len(pods) > 0 {
				fault = "container killed"
				node.tryKillContainer(t, w.namespace, pods[dice.IntN(len(pods))])
			}
		case 2:
			if pods := w.names("pods"); len(pods) > 0 {
				fault = "pod deleted"
				_, _ = node.try(t, "-n", w.namespace, "delete", "pod", pods[dice.IntN(len(pods))], "--wait=false")
			}
		case 3:
			fault = "kubelet stands still"
			pid := node.server(t, "kubelet")
			pause(t, pid, syscall.SIGSTOP)
			time.Sleep(2 * time.Second)
			pause(t, pid, syscall.SIGCONT)
		case 4:
			fault = "connections cut"
			w.Exec(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
		}
		faults[fault]++
		time.Sleep(time.Duration(500+dice.IntN(2500)) * time.Millisecond)
	}
	ends := map[string]int{}
	for n, id := range ids {
		status := w.Status(t, id)
		ends[status]++
		begun := count.of(n)
		switch {
		case begun > 1:
			t.Errorf("run %d, which ended %s, was applied %d times", n, status, begun)
		case status == "SUCCESS" && begun != 1:
			t.Errorf("run %d succeeded and was applied %d times", n, begun)
		}
	}
	t.Logf("%d runs under %v ended %v", runs, faults, ends)
	if ends["SUCCESS"] == 0 {
		t.Error("no run succeeded")
	}
	w.awaitNothingLeft()
	if got := w.Text(t, "SELECT count(*)::text FROM tendril.claims WHERE state = 'running'"); got != "0" {
		t.Errorf("%s claims run still", got)
	}
}

// over reports whether all runs have ended.
func (w *world) over(t *testing.T) bool {
	t.Helper()
	limit := site.Patience * 3
	if w.Text(t, "SELECT (now() - min(created_at) > $1::interval)::text FROM public.provisions", limit) == "true" {
		t.Fatalf("not all runs have ended within %s: %s", limit, w.Text(t, "SELECT string_agg(number || ' ' || status, ', ') FROM public.provisions WHERE ended_at IS NULL"))
	}
	return w.Text(t, "SELECT bool_and(status IN ('SUCCESS', 'FAILED', 'CANCELLED'))::text FROM public.provisions") == "true"
}
