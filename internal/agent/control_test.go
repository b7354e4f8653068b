package agent

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
)

func TestControlArrivesInOrder(t *testing.T) {
	t.Parallel()
	read, write := pipeOf(t)
	c := newControl(write, job.Job{Assignment: provision.Assignment{Number: 7}})
	c.send(job.Control{Ack: 1})
	c.send(job.Control{Stop: job.StopCancelled})
	r := job.NewReader(read)
	if j, err := r.Job(); err != nil || j.Assignment.Number != 7 {
		t.Errorf("Job() = %d, %v, want 7", j.Assignment.Number, err)
	}
	for _, want := range []job.Control{{Ack: 1}, {Stop: job.StopCancelled}} {
		if got, err := r.Next(); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("Next() = %+v, %v, want %+v", got, err, want)
		}
	}
	c.close()
	if _, err := r.Next(); err != job.ErrAgentGone { //nolint:errorlint // exactly that
		t.Errorf("Next() after close = %v, want ErrAgentGone", err)
	}
}

func TestDeafChildHoldsNothingUp(t *testing.T) {
	t.Parallel()
	_, write := pipeOf(t) // nobody reads, and the job alone is more than a pipe holds
	snapshot, err := json.Marshal(strings.Repeat("x", 200<<10))
	if err != nil {
		t.Fatal(err)
	}
	c := newControl(write, job.Job{Assignment: provision.Assignment{Snapshot: snapshot}})
	for n := range int64(10 * mostMessages) {
		c.send(job.Control{Ack: n})
	}
	c.close()
}

func pipeOf(t *testing.T) (read, write *os.File) {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeAll(read, write) })
	return read, write
}
