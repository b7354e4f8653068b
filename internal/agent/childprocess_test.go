package agent

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"encoding/json"

	"github.com/tendril-run/tendril/internal/executor"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/planbundle"
	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/spool"
)

// script is what a scripted child does, from the snapshot's variables.
type script struct {
	Dir   string   `json:"dir"` // for the files by which test and child meet
	Steps []string `json:"steps"`
}

// childProcess is the main function of a child that follows a script, speaking
// the protocol of package job as the executor does.
func childProcess() int {
	_ = process.Subreaper()
	_ = process.CloseOnExec(job.ControlFD, job.SpoolFD, job.LockFD, job.DoorbellFD, job.TailFD0, job.TailFD1, job.PlanFD, job.StateInFD, job.StateOutA, job.StateOutB)
	bell, err := spool.NewDoorbell(os.NewFile(job.DoorbellFD, "doorbell"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	c := &scripted{
		log:  spool.NewWriter(os.NewFile(job.SpoolFD, "spool"), bell),
		acks: make(chan job.Control, 64), stopped: make(chan struct{}),
	}
	reader := job.NewReader(os.NewFile(job.ControlFD, "control"))
	j, err := reader.Job()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	var snapshot struct {
		Vars script `json:"terraform_vars"`
	}
	if err := json.Unmarshal(j.Assignment.Snapshot, &snapshot); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	c.script, c.job = snapshot.Vars, j
	if limit := j.Settings.LogLimit; limit > 0 {
		c.log.Limit(limit, spool.Tail{os.NewFile(job.TailFD0, "tail"), os.NewFile(job.TailFD1, "tail")})
	}
	go c.listen(reader)
	code := c.play()
	if err := c.log.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	return code
}

type scripted struct {
	script
	job     job.Job
	log     *spool.Writer
	acks    chan job.Control
	stopped chan struct{}
	mu      sync.Mutex
	why     job.StopReason
}

func (c *scripted) listen(reader *job.Reader) {
	for {
		m, err := reader.Next()
		switch {
		case err != nil:
			c.stop(job.StopAgentGone)
			return
		case m.Stop != "":
			c.note("stops", string(m.Stop))
			c.stop(m.Stop)
		case m.Detach:
			c.note("detaches", strconv.Itoa(os.Getpid()))
		default:
			c.acks <- m
		}
	}
}

func (c *scripted) stop(why job.StopReason) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.why == "" {
		c.why = why
		close(c.stopped)
	}
}

func (c *scripted) note(name, line string) {
	f, err := os.OpenFile(filepath.Join(c.Dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, _ = fmt.Fprintln(f, line)
		_ = f.Close()
	}
}

// play carries out the steps and returns the exit code.
func (c *scripted) play() int {
	for _, step := range c.Steps {
		verb, arg, _ := strings.Cut(step, " ")
		n, _ := strconv.Atoi(arg)
		switch verb {
		case "print":
			for i := range n {
				_, _ = fmt.Fprintf(c.log.Stream(provision.Stdout), "line %d\n", i+1)
			}
		case "flood": // n lines of 100 bytes
			line := []byte(strings.Repeat("x", 99) + "\n")
			for range n {
				_, _ = c.log.Stream(provision.Stdout).Write(line)
			}
		case "babble": // n bytes on its own stderr
			_, _ = os.Stderr.WriteString(strings.Repeat("b", n) + "\nthe last words\n")
		case "apply":
			if !c.apply() {
				return c.end()
			}
		case "touch":
			c.note(arg, strconv.Itoa(os.Getpid()))
		case "hold": // until the test makes the file, or a stop
			if !c.awaitFile(arg, c.stopped) {
				return c.end()
			}
		case "sleep": // until the test makes the file, whatever the agent says
			c.awaitFile(arg, nil)
		case "opened": // says what a sealed variable was, in a way that is no secret
			_, _ = fmt.Fprintf(c.log.Stream(provision.Stdout), "%s is %x\n", arg, sha256.Sum256(c.job.SealedVars[arg]))
		case "deaf": // reads nothing more and stays
			time.Sleep(time.Hour) // Go would end a process in which nobody can go on
		case "secret": // a file with a secret
			if err := os.WriteFile(filepath.Join(c.job.Dirs.Secrets, arg), []byte("hunter2"), 0o600); err != nil {
				panic(err)
			}
		case "orphan": // a grandchild in a session of its own
			cmd := exec.Command("/bin/sleep", "1000")
			cmd.Env = []string{executor.EngineMark(c.job.Dirs.Work) + "data"}
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
			if err := cmd.Start(); err != nil {
				panic(err)
			}
			c.note(arg, strconv.Itoa(cmd.Process.Pid))
		case "die":
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		case "oom": // the kernel counts it in these control groups and kills it
			if err := countKill(arg); err != nil {
				panic(err)
			}
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		case "eat": // all the memory that there is
			for eaten := []byte{1}; ; {
				eaten = append(eaten, bytes.Repeat([]byte{byte(len(eaten))}, 16<<20)...)
			}
		case "panic":
			panic("a defect with 0xdeadbeef")
		case "exit":
			return n
		case "plan": // leaves a bundle, or, with a text after it, that
			content := []byte(arg)
			if arg == "" {
				content = c.bundle()
			}
			if _, err := os.NewFile(job.PlanFD, "plan").WriteAt(content, 0); err != nil {
				panic(err)
			}
			c.report(provision.AwaitingApproval, provision.Detail{PlanDigest: planbundle.Digest(content)})
		case "ask": // leaves its plan to a person
			content := c.bundle()
			if _, err := os.NewFile(job.PlanFD, "plan").WriteAt(content, 0); err != nil {
				panic(err)
			}
			c.report(provision.AwaitingInput, provision.Detail{PlanDigest: planbundle.Digest(content), Input: &provision.InputRequest{
				Instructions: "Mount it in rack hunter2.", Outputs: []provision.InputOutput{}, Machines: []provision.InputMachine{}, ExpiresSeconds: 3600,
			}})
		case "nonsense": // a result that the database does not take
			c.report(provision.Failed, provision.Detail{Stage: "nonsense", ErrorCode: provision.CodeInternal})
		case "succeed":
			c.report(provision.Success, provision.Detail{Stage: provision.StageDone})
		default:
			panic("unknown step " + step)
		}
	}
	return 0
}

// bundle is a plan of this run's provision.
func (c *scripted) bundle() []byte {
	snapshot, err := planbundle.SnapshotDigest(c.job.Assignment.Snapshot)
	if err != nil {
		panic(err)
	}
	content, err := planbundle.Bundle{
		Provision: c.job.Assignment.ProvisionID, Workspace: c.job.Assignment.WorkspaceID, Name: c.job.Assignment.Workspace,
		Operation: c.job.Assignment.Operation, Snapshot: snapshot, Plan: []byte("a plan"),
	}.Encode()
	if err != nil {
		panic(err)
	}
	return content
}

// apply asks for the acknowledgement.
func (c *scripted) apply() bool {
	n, err := c.log.UpdateAck(provision.Report{Status: provision.Processing, Detail: provision.Detail{Stage: provision.StageApply, Commit: strings.Repeat("a", 40)}})
	if err != nil {
		panic(err)
	}
	for {
		select {
		case m := <-c.acks:
			if m.Ack == n {
				return m.Refused == nil
			}
		case <-c.stopped:
			return false
		}
	}
}

func (c *scripted) awaitFile(name string, until <-chan struct{}) bool {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(filepath.Join(c.Dir, name)); err == nil {
			return true
		}
		if _, err := os.Stat(c.Dir); err != nil {
			os.Exit(1) // the test is over, and has forgotten this one
		}
		select {
		case <-tick.C:
		case <-until:
			return false
		}
	}
}

// end is how a run ends that was asked to.
func (c *scripted) end() int {
	c.mu.Lock()
	why := c.why
	c.mu.Unlock()
	c.log.System("stopped: %s", why)
	switch why {
	case job.StopAgentGone:
	case job.StopCancelled:
		c.report(provision.Cancelled, provision.Detail{ErrorCode: provision.CodeCancelled, ErrorMessage: "Cancelled."})
	case job.StopDrained:
		c.report(provision.Failed, provision.Detail{ErrorCode: provision.CodeAgentDrained, ErrorMessage: "Drained."})
	default:
		c.report(provision.Failed, provision.Detail{ErrorCode: provision.CodeAgentLost, ErrorMessage: "Lost."})
	}
	return 0
}

func (c *scripted) report(status provision.Status, detail provision.Detail) {
	if err := c.log.Update(provision.Report{Status: status, Detail: detail}); err != nil {
		panic(err)
	}
}
