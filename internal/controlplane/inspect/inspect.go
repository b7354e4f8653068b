package inspect

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/tendril-run/tendril/internal/controlplane/publicaddr"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/timelimit"
)

// Options say how repositories are looked at.
type Options struct {
	// Command starts a program that calls Child. Without one, all is left to
	// agents.
	Command []string
	// Files are patterns of file:// repositories that may be read: those of this
	// machine's own samples.
	Files []string
	// Private allows repositories at addresses that are not the Internet's.
	Private bool
	// CAFile has certificates that git servers may have beside the system's.
	CAFile string
	// Timeout bounds one inspection; 0: a minute.
	Timeout time.Duration
	// Every is how often the database is asked; 0: each second.
	Every time.Duration
	Log   *slog.Logger
}

// Inspector makes the inspections that the database has for it. Several may run,
// in any number of processes: each inspection is one's.
type Inspector struct {
	Options
	database *store.Database
}

// New returns an inspector. Whoever made it calls Run.
func New(d *store.Database, o Options) *Inspector {
	o.Timeout, o.Every = cmp.Or(o.Timeout, time.Minute), cmp.Or(o.Every, time.Second)
	return &Inspector{Options: o, database: d}
}

// Run inspects until the context ends.
func (i *Inspector) Run(ctx context.Context) {
	tick := time.NewTicker(i.Every)
	defer tick.Stop()
	away := false
	for {
		err := i.once(ctx)
		if err != nil && ctx.Err() == nil && !away {
			i.Log.Error("templates cannot be inspected; trying again", "every", i.Every, "error", err)
		}
		away = err != nil
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// once does what there is to do.
func (i *Inspector) once(ctx context.Context) error {
	for {
		// Each time, for one slow server after the other may have us busy for long:
		// who has waited for a minute is an agent's.
		if _, err := i.database.HandInspections(ctx); err != nil || len(i.Command) == 0 {
			return err
		}
		// Longer than a child may take, so that no other has it before.
		wanted, ok, err := i.database.ClaimInspection(ctx, i.Timeout+time.Minute)
		if err != nil || !ok {
			return err
		}
		if err := i.inspect(ctx, wanted); err != nil {
			return err
		}
	}
}

// inspect looks, and stores what came of it.
func (i *Inspector) inspect(ctx context.Context, w store.WantedInspection) error {
	a := i.ask(ctx, w)
	if ctx.Err() != nil {
		return ctx.Err() // another gets it when the lease is over
	}
	result := store.InspectionResult{Commit: a.Commit, Variables: a.Variables, About: a.About, Code: a.Code, Problem: a.Problem}
	// What there may be another way to, an agent's: its credentials, its network.
	switch provision.Code(a.Code) {
	case provision.CodeRepoRefused, provision.CodeCheckoutFailed:
		result.Hand = true
		result.Problem = "trellis cannot read it, so an agent of a cluster that may fetch it does, when one is online. " + a.Problem
	}
	if a.Tags != nil {
		if err := i.database.RecordTags(ctx, w, a.Tags); err != nil {
			return err
		}
	}
	return i.database.SettleInspection(ctx, w, result)
}

// ask has a child look. What becomes of it is an answer, too.
func (i *Inspector) ask(ctx context.Context, w store.WantedInspection) answer {
	if !strings.HasPrefix(strings.ToLower(w.Address), "https://") && len(i.Files) == 0 || strings.HasPrefix(w.Address, "ssh://") || !strings.Contains(w.Address, "://") {
		return answer{Code: string(provision.CodeRepoRefused), Problem: "trellis has no credentials, and reads public repositories over HTTPS only."}
	}
	failed := func(format string, args ...any) answer {
		return answer{Code: string(provision.CodeCheckoutFailed), Problem: fmt.Sprintf(format, args...)}
	}
	dir, err := os.MkdirTemp("", "trellis-inspect-")
	if err != nil {
		return failed("trellis has no room for a checkout: %v", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	given, err := json.Marshal(question{w.Address, w.Version, w.Path, w.Pinned, dir, i.Files, i.Private, i.CAFile, i.Timeout})
	if err != nil {
		return failed("%v", err)
	}
	limited, cancel := timelimit.Context(ctx, i.Timeout+5*time.Second) // it should end by itself
	defer cancel()
	child := exec.CommandContext(limited, i.Command[0], i.Command[1:]...)
	// Nothing of ours: no database URL, no proxy that reaches where we do not.
	child.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + dir}
	child.Dir = dir
	said, complaint := &timelimit.Head{Limit: 4 << 20}, &timelimit.Head{Limit: 4 << 10}
	child.Stdout, child.Stderr = said, complaint
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	child.WaitDelay = time.Second
	if err := run(child, given); err != nil {
		if timelimit.Reached(limited) && ctx.Err() == nil {
			return failed("It took longer than %s.", i.Timeout)
		}
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && complaint.String() != "" {
			i.Log.Warn("an inspection's process ended early", "repo", w.Repo, "exit", exit.Error(), "stderr", complaint.String())
		}
		return answer{Code: string(provision.CodeTemplateInvalid), Problem: "The repository or the template takes more memory, room or time than an inspection may."}
	}
	var a answer
	if err := json.Unmarshal(said.Bytes(), &a); err != nil {
		return failed("the inspection's answer cannot be read: %v", err)
	}
	if a.Code == "" && a.Variables == nil {
		a.Variables = []provision.Variable{} // none are declared
	}
	return a
}

// run has a child be asked, and waits for its end. Its stdin stays open: that it
// is closed tells the child that nobody waits for it any more.
func run(child *exec.Cmd, question []byte) error {
	stdin, err := child.StdinPipe()
	if err != nil {
		return err
	}
	if err := child.Start(); err != nil {
		return err
	}
	_, _ = stdin.Write(question) // who does not read it does not answer
	return child.Wait()
}

// dialPublic connects to public addresses only. It looks at the address that is
// connected to, after the name was resolved: no second look-up answers otherwise.
func dialPublic(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: 10 * time.Second, ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil || !publicaddr.Is(at.Addr()) {
			return fmt.Errorf("%s is no address of the Internet, and trellis connects to no other for a template's sake", address)
		}
		return nil
	}}
	return d.DialContext(ctx, network, address)
}
