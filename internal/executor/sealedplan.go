package executor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/planbundle"
	"github.com/tendril-run/tendril/internal/provision"
)

// sealedPlan is the plan that is shown, judged, approved and applied: one file in
// memory that nobody can change, including this process. Runs may share a uid, and
// then another run's template could replace a plan on disk after the policy hook
// has judged it and before it is applied.
type sealedPlan struct{ file *os.File }

// maxSealedPlan is how many bytes of memory a plan may take. A plan that waits for
// approval is bounded by planbundle.MaxContent as well.
const maxSealedPlan = 256 << 20

// sealPlan copies a plan and seals the copy.
func sealPlan(from io.Reader) (*sealedPlan, error) {
	fd, err := unix.MemfdCreate("plan", unix.MFD_ALLOW_SEALING|unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make room in memory for the plan: %w", err)
	}
	p := &sealedPlan{os.NewFile(uintptr(fd), "plan")}
	size, err := io.Copy(p.file, io.LimitReader(from, maxSealedPlan+1))
	if err == nil && size > maxSealedPlan {
		err = provision.Fail(provision.CodePlanFailed, fmt.Sprintf("The plan is larger than %d MiB, the most that is kept of one. Split the template.", maxSealedPlan>>20), nil)
	}
	if err == nil {
		_, err = unix.FcntlInt(p.file.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err == nil { // the engine inherits it, and opens it by its number
		_, err = unix.FcntlInt(p.file.Fd(), unix.F_SETFD, 0)
		runtime.KeepAlive(p.file)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("keep the plan: %w", err), p.Close())
	}
	return p, nil
}

// path is where this process and its children open the plan. It names a
// descriptor, which no other process can replace.
func (p *sealedPlan) path() string { return fmt.Sprintf("/proc/self/fd/%d", p.file.Fd()) }

// read returns the plan if it has at most limit bytes.
func (p *sealedPlan) read(limit int64) ([]byte, error) {
	info, err := p.file.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() > limit {
		return nil, planbundle.TooLarge(info.Size())
	}
	return io.ReadAll(io.NewSectionReader(p.file, 0, info.Size()))
}

// Close frees the memory. There may be no plan.
func (p *sealedPlan) Close() error {
	if p == nil {
		return nil
	}
	return p.file.Close()
}
