package chaos

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/runlog"
)

// odd prints what no log should have, between lines that say where. Of what a
// provisioner prints Terraform drops lines of 64 KB and more, and ends one at a
// carriage return too; not so with what it prints itself.
const odd = `
resource "terraform_data" "a" {
  provisioner "local-exec" {
    command = "exec sh ${path.module}/odd.sh"
  }
}
output "long" { value = file("${path.module}/long") }
`

const oddScript = `
echo "case 1 begins"
head -c 60000 /dev/zero | tr '\0' x
echo
echo "case 2 begins"
printf 'a\0b\0\0c\n'
echo "case 3 begins"
printf 'a\377b\303(c\355\240\200d\n'
echo "case 4 begins"
printf 'a\033[31mred\033[0m\n'
echo "case 5 begins"
printf 'no newline at the end'
`

// Lines of a megabyte, NUL and invalid UTF-8 by way of the real engine.
func TestOddLines(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	long := strings.Repeat("0123456789", 100_000)
	repo := w.Template("odd", map[string]string{"main.tf": odd, "odd.sh": oddScript, "long": long})
	a := w.agent("one", 1, w.SharedState()).Start()
	id := w.DeployTemplate(repo, "a", nil)
	if got := w.AwaitEnd(id); got != "SUCCESS" {
		t.Fatalf("provision = %s (%s), want SUCCESS", got, w.Message(id))
	}
	log := w.Log(t, id)
	for i, want := range []string{
		strings.Repeat("x", 60_000), "a\uFFFDb\uFFFD\uFFFDc", "a\uFFFDb\uFFFD(c\uFFFD\uFFFD\uFFFDd", "a\x1b[31mred\x1b[0m", "no newline at the end",
	} {
		next := ""
		if i < 4 {
			next = fmt.Sprintf("case %d begins", i+2)
		}
		if !runlog.Says(log, fmt.Sprintf("case %d begins\n%s\n%s", i+1, want, next)) {
			t.Errorf("case %d: the log does not have %d bytes, %.80q, and then %q", i+1, len(want), want, next)
		}
	}
	if _, end, _ := strings.Cut(log, "Outputs:"); !strings.Contains(end, "long = \""+long+"\"\n") {
		t.Errorf("the log does not end with a line of %d bytes", len(long))
	}
	counted.add("faults: lines of a megabyte", 1)
	counted.add("faults: NUL and invalid UTF-8", 2)
	a.Terminate()
	w.count(a)
}

// The engine cuts a line that takes its time, and drops the space before the cut.
// All of it is in the log.
func TestCutLines(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	a := w.alone("one", 1).Start()
	r := w.deployStalling("a", 2, 10*time.Millisecond, 300*time.Millisecond)
	w.awaitAll()
	a.Terminate()
	w.count(a, "SUCCESS")
	if whole := wholeLine.FindString(w.Log(t, r.id)); whole != "" {
		t.Errorf("the engine showed %q in one line, so the test shows nothing", whole)
	}
}

// rawText is n lines of any bytes with a line that is known before each.
func rawText(n int) []byte {
	var b bytes.Buffer
	random := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		fmt.Fprintf(&b, "known %d\n", i+1)
		line := make([]byte, random.IntN(200))
		for j := range line {
			if line[j] = byte(random.IntN(256)); line[j] == '\n' {
				line[j] = 0
			}
		}
		b.Write(append(line, '\n'))
	}
	return b.Bytes()
}

// cleaned is what becomes of bytes that are no text.
func cleaned(raw []byte) string {
	var b strings.Builder
	for len(raw) > 0 {
		r, size := utf8.DecodeRune(raw)
		if r == 0 {
			r = utf8.RuneError
		}
		b.WriteRune(r)
		raw = raw[size:]
	}
	return b.String()
}

// Any bytes, as an engine prints them that does not encode what it prints.
func TestAnyBytes(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	raw := rawText(times(2_000, 50_000))
	if err := os.WriteFile(rawIn(w.journal), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	a := w.agent("one", 1, w.SharedState())
	a.Set("TENDRIL_ENGINE_DIR", engineDir(t))
	a.Set(torrentEnv, torrent{Lines: 1, Bytes: 20}.String())
	a.Start()
	id := w.DeployTemplate(w.repo, "a", map[string]any{"n": 1, "workspace": "a", "lines": 1, "pause": "0"})
	if got := w.AwaitEnd(id); got != "SUCCESS" {
		t.Fatalf("provision = %s (%s), want SUCCESS", got, w.Message(id))
	}
	want := cleaned(raw)
	_, after, _ := strings.Cut(w.Log(t, id), "known 1\n")
	got := "known 1\n" + after
	got = got[:min(len(got), len(want))]
	for i, line := range strings.SplitAfter(want, "\n") {
		if !strings.HasPrefix(got, line) {
			t.Fatalf("line %d of the log is %.100q, want %.100q", i+1, got, line)
		}
		got = got[len(line):]
		counted.add("lines compared", 1)
	}
	counted.add("faults: NUL and invalid UTF-8", bytes.Count(raw, []byte("\n"))/2)
	a.Terminate()
	w.count(a)
}

// An engine that prints nothing for longer than two leases, again and again, keeps
// its run, though another agent is there that gives up what has no lease; and what
// it prints then is there at once.
func TestSilentEngine(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	w.quickly()
	w.Exec(t, "UPDATE tendril.settings SET lease = '4 s'")
	a := w.agent("one", 1, w.SharedState()).Start()
	const pause = 9 * time.Second // every 10 s Terraform itself says that it goes on
	r := w.deploy("a", endless, pause)
	w.awaitPrinted(r, 1)
	witness := w.agent("witness", 1, w.SharedState()).Start()
	w.deploy("b", 3, 10*time.Millisecond)
	late := w.lateness(r, times(1, 7), 400*time.Millisecond)
	w.enough(r)
	if got := w.AwaitEnd(r.id); got != "SUCCESS" {
		t.Errorf("the silent run = %s (%s), want SUCCESS", got, w.Message(r.id))
	}
	if got := w.Text(t, "SELECT (c.lease_until > p.finished_at)::text FROM tendril.claims c JOIN public.provisions p ON p.id = c.provision_id WHERE p.id = $1", r.id); got != "true" {
		t.Error("the silent run's lease had run out before its end")
	}
	t.Logf("after a silence of %s, with a lease of 4 s, the first line was stored after %v", pause, late)
	counted.add("faults: engine silent for several leases", len(late))
	a.Terminate()
	witness.Terminate()
	w.nobodyLost()
	w.countLeftovers(a)
	w.count(witness, "SUCCESS")
}

// lateness is how long after they were printed each of a run's lines was stored,
// from the second on: so many at least, and until one was there within a time. Not
// all are, for what Terraform says may have come just before.
func (w *works) lateness(r *workRun, least int, within time.Duration) (late []time.Duration) {
	w.T.Helper()
	for limit := patience.Begin(site.Patience); len(late) < least || slices.Min(late) > within; {
		if limit.Over() {
			w.T.Fatalf("lines after a silence were stored after %v, want one of them at once", late)
		}
		n := len(late) + 2
		line := fmt.Sprintf("n=%d line %d.", r.n, n)
		w.awaitPrinted(r, n)
		w.AwaitLine(r.id, line)
		var stored time.Time
		if err := w.Conn.QueryRow(w.T.Context(), "SELECT created_at FROM public.provision_logs WHERE provision_id = $1 AND log_chunk LIKE '%' || $2 || '%'",
			r.id, line).Scan(&stored); err != nil {
			w.T.Fatal(err)
		}
		late = append(late, stored.Sub(w.printed(r)[n-1]))
	}
	return late
}
