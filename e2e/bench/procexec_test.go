package bench

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
)

// refusedJob starts a run's process as an agent does and hands it a job whose
// operation the policy does not grant. It answers how long the process lived.
func refusedJob(b *testing.B) time.Duration {
	b.Helper()
	files, err := newExecFiles(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer files.close()
	cmd := exec.CommandContext(b.Context(), site.Program("tendril"), "exec")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + b.TempDir()}
	cmd.ExtraFiles = files.theirs()
	began := time.Now()
	err = cmd.Start()
	if err == nil {
		err = job.Write(files.control[1], job.Job{
			Assignment: provision.Assignment{
				Operation: provision.OperationDestroy,
				Snapshot:  []byte(`{"template_source": {"repo": "https://git.example/a", "version": "v1"}, "workspace": "a"}`),
			},
			Settings: job.Settings{Policy: job.Policy{Operations: []provision.Operation{provision.OperationApply}}, Timeout: time.Minute, CancelGrace: time.Second},
		})
	}
	if err == nil {
		err = cmd.Wait()
	}
	took := time.Since(began)
	if err != nil {
		b.Fatal(err)
	}
	spool, err := os.ReadFile(files.spool.Name())
	if err != nil || !strings.Contains(string(spool), string(provision.CodeOperationRefused)) {
		b.Fatalf("the spool is %q, %v, want a result %s", spool, err, provision.CodeOperationRefused)
	}
	return took
}

// execFiles are the descriptors of package job.
type execFiles struct {
	control, doorbell [2]*os.File // read, write
	spool, lock       *os.File
	tail              [2]*os.File
	plan              *os.File
}

func newExecFiles(dir string) (*execFiles, error) {
	f := &execFiles{}
	var errs [7]error
	f.control[0], f.control[1], errs[0] = os.Pipe()
	f.doorbell[0], f.doorbell[1], errs[1] = os.Pipe()
	for i, file := range []**os.File{&f.spool, &f.lock, &f.tail[0], &f.tail[1], &f.plan} {
		*file, errs[2+i] = os.OpenFile(fmt.Sprintf("%s/%d", dir, i), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	}
	return f, errors.Join(errs[:]...)
}

func (f *execFiles) theirs() []*os.File {
	return []*os.File{f.control[0], f.spool, f.lock, f.doorbell[1], f.tail[0], f.tail[1], nil, f.plan}
}

func (f *execFiles) close() {
	for _, file := range append(f.theirs(), f.control[1], f.doorbell[0]) {
		_ = file.Close() // what matters has been read
	}
}
