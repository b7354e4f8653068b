package bench

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/spool"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

const (
	// spoolSize is how large the file is that a dead child has left.
	spoolSize = 1 << 30
	// barePart is how much of that is stored without Tendril: all of it would
	// take as long as everything else here.
	barePart = 256 << 20
)

// An agent starts that finds a very long spool, and delivers it; against batch
// inserts of a part of the same bytes.
func BenchmarkSpoolDelivery(b *testing.B) {
	w := newPrinters(b, 1, printing{During: "plan", Lines: 1})
	w.agent.Set("TENDRIL_RUN_TIMEOUT", "1h")
	conns := w.connect(b, 1)
	var ours, bare costs
	var memory int64
	for b.Loop() {
		w.bareRound(b, &bare, conns, barePart)
		id := w.abandon(b)
		postgres := usageBelow(b, w.postgres)
		began := time.Now()
		w.agent.Start()
		w.AwaitEnd(id) // it is ended after its last line
		ours.time += time.Since(began)
		ours.postgres += usageBelow(b, w.postgres) - postgres
		ours.agent += usageOf(b, w.agent.Cmd.Process.Pid).own
		memory = max(memory, site.PeakMemory(w.agent.Cmd.Process.Pid))
		ours.bytes += w.storedBytes(b, id)
		w.agent.Terminate()
		if want := spoolSize / 2; ours.bytes < want {
			b.Fatalf("%d bytes are stored, want more than %d", ours.bytes, want)
		}
		w.Exec(b, "TRUNCATE public.provision_logs")
	}
	b.ReportMetric(ours.rate(), "MB/s")
	b.ReportMetric(bare.rate(), "bare-MB/s")
	b.ReportMetric(100*ours.rate()/bare.rate(), "of-bare-%")
	b.ReportMetric(float64(memory)/(1<<20), "agent-MB")
	b.ReportMetric(ours.per100MB(ours.agent), "agent-cpu-s")
	b.ReportMetric(ours.per100MB(ours.postgres), "postgres-cpu-s")
	b.ReportMetric(bare.per100MB(bare.postgres), "bare-postgres-cpu-s")
	only(b)
}

// abandon has an agent and its run killed, and puts the long spool in place of
// the one that is left.
func (w *printers) abandon(b *testing.B) uuid.UUID {
	b.Helper()
	long := longSpool(b)
	w.agent.Start()
	id := w.deploy(b, 1)[0]
	children, err := process.Descendants(w.agent.Cmd.Process.Pid)
	if err != nil {
		b.Fatal(err)
	}
	w.agent.Kill()
	for _, p := range children {
		_ = syscall.Kill(p.PID, syscall.SIGKILL) // it may have ended by itself
	}
	limit := patience.Begin(site.Patience)
	for slices.ContainsFunc(children, func(p process.Info) bool { return process.Alive(p.PID) }) {
		if limit.Over() {
			b.Fatal("the run does not end when it is killed")
		}
		limit.Pause()
	}
	for _, file := range w.journal.list("") {
		_ = os.Remove(file)
	}
	for _, file := range w.agent.Spools() {
		if strings.HasSuffix(file, ".ndjson") && !strings.Contains(file, ".tail") {
			if err := errors.Join(os.Remove(file), os.Link(long, file)); err != nil {
				b.Fatal(err)
			}
			return id
		}
	}
	b.Fatal("the run has left no spool")
	return id
}

// longSpool returns a file with what a run has printed line by line. It is made
// once, where the built programs are, and removed with them; what an agent has
// added to it is cut off again.
func longSpool(b *testing.B) string {
	b.Helper()
	path := filepath.Join(filepath.Dir(site.Program("tendril")), "spool.ndjson")
	if err := makeLongSpool(path); err != nil {
		b.Fatal(err)
	}
	if err := os.Truncate(path, spoolLength); err != nil {
		b.Fatal(err)
	}
	return path
}

// spoolLength is how long the file was when it was made.
var spoolLength int64

var makeSpool sync.Once

func makeLongSpool(path string) (err error) {
	makeSpool.Do(func() {
		var file *os.File
		if file, err = os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600); err != nil {
			return
		}
		log := spool.NewWriter(file, nil)
		out, some := log.Stream(provision.Stdout), lines()
		for i := 0; err == nil && spoolLength < spoolSize; i++ {
			_, err = out.Write([]byte(some[i%len(some)]))
			if i%10_000 == 0 {
				var info os.FileInfo
				if info, err = file.Stat(); err == nil {
					spoolLength = info.Size()
				}
			}
		}
		err = errors.Join(err, log.Close())
		if info, statErr := file.Stat(); statErr == nil {
			spoolLength = info.Size()
		}
		err = errors.Join(err, file.Close())
	})
	return err
}
