package bench

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// printEnv tells the printing engine what to print, in the words of printing.
const printEnv = "TEST_PRINT"

// printing is what an engine prints that stands in for Terraform, which itself
// cannot print that fast, nor say when it did.
type printing struct {
	// During is the command that prints: plan prints text, which goes through as
	// it is, apply prints events, of which the child makes text.
	During string
	Lines  int
	// Gap is the time between two lines; 0: as fast as they are taken.
	Gap time.Duration
}

func (p printing) String() string { return fmt.Sprintf("%s %d %d", p.During, p.Lines, p.Gap) }

// The engine is a copy of this program under an engine's name.
func init() {
	if filepath.Base(os.Args[0]) == "terraform" {
		unix.Exit(playPrinting(os.Args[1:], os.Stdout))
	}
}

func playPrinting(args []string, out *os.File) (code int) {
	switch args[0] {
	case "version": // asked without any variables
		_, _ = fmt.Fprintln(out, `{"terraform_version":"1.11.4","provider_selections":{}}`)
		return 0
	case "show":
		_, _ = fmt.Fprintln(out, `{"format_version":"1.2","terraform_version":"1.11.4"}`)
	case "plan":
		code = 2 // there are changes
	}
	var p printing
	if _, err := fmt.Sscan(os.Getenv(printEnv), &p.During, &p.Lines, &p.Gap); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if args[0] != p.During {
		return code
	}
	if err := p.play(out, journal(os.Getenv("TEST_JOURNAL"))); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// play waits until it may begin, prints, and notes the processor time it took.
func (p printing) play(out io.Writer, j journal) error {
	me := strconv.Itoa(os.Getpid())
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)
	if err := os.WriteFile(j.file("ready", me), nil, 0o600); err != nil {
		return err
	}
	for !exists(j.file("go", "")) {
		select {
		case <-interrupts:
			return os.WriteFile(j.file("interrupted", ""), []byte(strconv.FormatInt(time.Now().UnixNano(), 10)), 0o600)
		case <-time.After(time.Millisecond): // the engine is outside of what is tested
		}
	}
	print := p.flatOut
	if p.Gap > 0 {
		print = p.paced
	}
	if err := print(out); err != nil {
		return err
	}
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		return err
	}
	took := time.Duration(used.Utime.Nano() + used.Stime.Nano())
	return os.WriteFile(j.file("used", me), []byte(took.String()), 0o600)
}

// lastLine ends what is printed flat out.
const lastLine = "Plan: 9 to add, 0 to change, 0 to destroy.\n"

// flatOut writes blocks of lines, as programs do whose output is a pipe.
func (p printing) flatOut(out io.Writer) error {
	w := bufio.NewWriterSize(out, 32<<10)
	some := lines()
	for i := range p.Lines {
		line := some[i%len(some)]
		if i == p.Lines-1 {
			line = lastLine
		}
		if _, err := w.WriteString(p.framed(line)); err != nil {
			return err
		}
	}
	return w.Flush()
}

// printedAt is what stands in a paced line before the time it was printed.
const printedAt = "printed at "

// paced writes one line at a time. The gaps differ by half, so that they do not
// fall in step with anybody's timer.
func (p printing) paced(out io.Writer) error {
	due := time.Now()
	for range p.Lines {
		due = due.Add(p.Gap*3/4 + time.Duration(rand.Int64N(int64(p.Gap)/2)))
		time.Sleep(time.Until(due)) // the engine's pace
		line := fmt.Sprintf("module.network.aws_subnet.private[17]: Still creating... %s%d ns\n", printedAt, time.Now().UnixNano())
		if _, err := io.WriteString(out, p.framed(line)); err != nil {
			return err
		}
	}
	return nil
}

// framed is the line as the command prints it.
func (p printing) framed(line string) string {
	if p.During != "apply" {
		return line
	}
	return `{"@level":"info","@message":` + strconv.Quote(strings.TrimSuffix(line, "\n")) +
		`,"@module":"terraform.ui","@timestamp":"2026-01-02T03:04:05.000000Z","type":"log"}` + "\n"
}

// lines are some that Terraform might print, none like another.
func lines() []string {
	random := rand.New(rand.NewPCG(1, 2))
	out := make([]string, 1<<12)
	for i := range out {
		n, id := random.IntN(1000), random.Uint64()
		out[i] = [...]string{
			fmt.Sprintf("module.network.aws_subnet.private[%d]: Creation complete after %ds [id=subnet-0%016x]\n", n, n%90, id),
			fmt.Sprintf("module.cluster[\"eu-central-1\"].aws_instance.node[%d]: Still creating... [%02dm%02ds elapsed]\n", n, n%60, n%59),
			fmt.Sprintf("data.aws_iam_policy_document.node[%d]: Refreshing state... [id=%d]\n", n, id),
			fmt.Sprintf("      + \"kubernetes.io/cluster/acme-%03d\" = \"arn:aws:eks:eu-central-1:%012d:cluster/acme\"\n", n, id%1e12),
		}[i%4]
	}
	return out
}

// size is how many bytes of text a printing that is flat out prints.
func (p printing) size() int {
	size, some := len(lastLine), lines()
	for i := range p.Lines - 1 {
		size += len(some[i%len(some)])
	}
	return size
}

// journal is a directory by which engines and benchmark speak to each other.
type journal string

func (j journal) file(what, who string) string { return filepath.Join(string(j), what+who) }

func (j journal) list(what string) []string {
	found, _ := filepath.Glob(j.file(what, "*")) // the pattern is well formed
	return found
}

// begin lets all engines print that wait for it.
func (j journal) begin(b *testing.B) time.Time {
	b.Helper()
	began := time.Now()
	if err := os.WriteFile(j.file("go", ""), nil, 0o600); err != nil {
		b.Fatal(err)
	}
	return began
}

// used is the processor time of the engines, which have ended. The journal is empty then.
func (j journal) used(b *testing.B, engines int) time.Duration {
	b.Helper()
	files := j.list("used")
	if len(files) != engines {
		b.Fatalf("%d engines have printed all they had to, want %d", len(files), engines)
	}
	var sum time.Duration
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			b.Fatal(err)
		}
		took, err := time.ParseDuration(string(text))
		if err != nil {
			b.Fatal(err)
		}
		sum += took
	}
	j.empty(b)
	return sum
}

// interrupted is when the only engine got SIGINT. The journal is empty then.
func (j journal) interrupted(b *testing.B) time.Time {
	b.Helper()
	text, err := os.ReadFile(j.file("interrupted", ""))
	if err != nil {
		b.Fatal(err)
	}
	nanos, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	j.empty(b)
	return time.Unix(0, nanos)
}

func (j journal) empty(b *testing.B) {
	b.Helper()
	for _, file := range j.list("") {
		if err := os.Remove(file); err != nil {
			b.Fatal(err)
		}
	}
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}
