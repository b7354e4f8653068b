package bench

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/tendril-run/tendril/e2e/site"
)

// idleSpan is over how long the work of a process that has none is measured: a
// heartbeat comes every 10 s, and a question for work every 5.
const idleSpan = 12 * time.Second

const helloTemplate = `resource "terraform_data" "hello" {
  input = "hello"
}
`

// An agent as it comes, before its first provision and after one, and the run's
// own process meanwhile.
func BenchmarkAgentIdle(b *testing.B) {
	s := site.New(b)
	url := s.Template("hello", map[string]string{"main.tf": helloTemplate})
	listen := program(b, "listen")
	for b.Loop() {
		bare := startListening(b, listen, s.QueueURL)
		a := asItComes(s).Start()
		awaitListening(s)

		work := measureIdle(b, a.Cmd.Process.Pid)
		least := measureIdle(b, bare.Process.Pid)
		<-time.After(idleSpan) // the span that is measured
		b.ReportMetric(work(), "cpu-%")
		b.ReportMetric(least(), "bare-cpu-%")
		fresh, bareMemory := memoryOf(a.Cmd.Process.Pid), memoryOf(bare.Process.Pid)
		fresh.report(b, "")
		bareMemory.report(b, "bare-")
		b.ReportMetric(float64(fresh.threads), "threads")
		b.ReportMetric(float64(bareMemory.threads), "bare-threads")

		stop := watchChild(a.Cmd.Process.Pid)
		id := s.DeployTemplate(url, "a", nil)
		if got := s.AwaitEnd(id); got != "SUCCESS" {
			b.Fatalf("the run = %s (%s), want SUCCESS", got, s.Message(id))
		}
		b.ReportMetric(mb(stop()), "exec-peak-MB")
		work = measureIdle(b, a.Cmd.Process.Pid)
		<-time.After(idleSpan) // the span that is measured
		b.ReportMetric(work(), "after-cpu-%")
		memoryOf(a.Cmd.Process.Pid).report(b, "after-")
		a.Terminate()
		end(b, bare)
	}
	only(b)
}

// measureIdle measures the processor's time that a process takes, in percent of
// one core, until it is asked for it.
func measureIdle(b *testing.B, pid int) func() float64 {
	began, before := time.Now(), cpuOf(b, pid)
	return func() float64 { return 100 * float64(cpuOf(b, pid)-before) / float64(time.Since(began)) }
}

// From the start of an agent to its registration, and to the claim of what
// waits for it already.
func BenchmarkAgentStart(b *testing.B) {
	const starts = 15
	s := site.New(b)
	listen := program(b, "listen")
	a := asItComes(s)
	if err := exec.CommandContext(b.Context(), a.Binary, "version").Run(); err != nil { // into the page cache
		b.Fatal(err)
	}
	for b.Loop() {
		var bare, registered, claimed series
		for i := range starts {
			began := time.Now()
			cmd := startListening(b, listen, s.QueueURL)
			bare.add(time.Since(began))
			end(b, cmd)

			id := s.Deploy(b, fmt.Sprint("w", i)) // of a repository that is not allowed
			began = time.Now()
			a.Start()
			if got := s.AwaitEnd(id); got != "FAILED/repo_refused" {
				b.Fatalf("the run = %s (%s), want FAILED/repo_refused", got, s.Message(id))
			}
			registered.add(instant(s, "SELECT max(registered_at) FROM public.agents").Sub(began))
			claimed.add(instant(s, "SELECT started_at FROM public.provisions WHERE id = $1", id).Sub(began))
			a.Terminate()
		}
		bare.report(b, "bare-", 50)
		registered.report(b, "registered-", 50)
		claimed.report(b, "claimed-", 50)
	}
	only(b)
}

// The whole life of a process that refuses its job at once: what each run
// takes before and after its work.
func BenchmarkExecStart(b *testing.B) {
	const starts = 60
	hello := program(b, "hello")
	for b.Loop() {
		var bare, ours series
		for range starts {
			began := time.Now()
			if err := exec.CommandContext(b.Context(), hello).Run(); err != nil {
				b.Fatal(err)
			}
			bare.add(time.Since(began))
			ours.add(refusedJob(b))
		}
		bare.report(b, "bare-", 50, 90)
		ours.report(b, "", 50, 90)
	}
	only(b)
}

func BenchmarkBinarySize(b *testing.B) {
	hello, listen := program(b, "hello"), program(b, "listen")
	for b.Loop() {
		b.ReportMetric(mb(sizeOf(b, site.Program("tendril"))), "tendril-MB")
		b.ReportMetric(mb(sizeOf(b, site.Program("trellis"))), "trellis-MB")
		b.ReportMetric(mb(sizeOf(b, hello)), "bare-hello-MB")
		b.ReportMetric(mb(sizeOf(b, listen)), "bare-tendril-MB")
	}
	only(b)
}

// asItComes is an agent whose configuration leaves every interval as it is.
func asItComes(s *site.Site) *site.Agent {
	s.T.Helper()
	a := s.NewAgent("bench", 2, "")
	content := fmt.Sprintf("name = %q\ndata_dir = %q\n[policy]\nrepos = [%q]\n[git]\nca_file = %q\n", a.Name, a.Dir, s.Git.URL+"/**", s.Git.CAFile)
	if err := os.WriteFile(a.Config, []byte(content), 0o600); err != nil {
		s.T.Fatal(err)
	}
	return a
}

// awaitListening waits until the agent is known and its session listens.
func awaitListening(s *site.Site) {
	s.T.Helper()
	s.Await("the agent", `SELECT EXISTS (SELECT FROM public.agents) AND EXISTS (
		SELECT FROM pg_stat_activity WHERE application_name LIKE 'tendril %' AND query LIKE 'LISTEN %' AND datname = current_database())`)
}

// instant asks the database for one.
func instant(s *site.Site, query string, args ...any) (t time.Time) {
	s.T.Helper()
	if err := s.Conn.QueryRow(s.T.Context(), query, args...).Scan(&t); err != nil {
		s.T.Fatal(err)
	}
	return t
}

// startListening starts the least agent and waits until it says that it listens.
func startListening(b *testing.B, path, url string) *exec.Cmd {
	b.Helper()
	cmd := exec.CommandContext(b.Context(), path, url)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		b.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		b.Fatalf("the least agent said %q: %v", line, err)
	}
	return cmd
}

// end kills a process and waits for its end.
func end(b *testing.B, cmd *exec.Cmd) {
	b.Helper()
	_ = cmd.Process.Kill()
	if err := cmd.Wait(); cmd.ProcessState == nil {
		b.Fatal(err)
	}
}
