package pvesim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// task is a worker: what takes longer than an answer.
type task struct {
	s      *Server
	upid   string
	node   string
	kind   string
	id     string
	user   string
	pid    int
	pstart int
	began  time.Time
	ended  time.Time // zero: it runs
	exit   string
	lines  []string
	ctx    context.Context
	stop   context.CancelFunc
	done   chan struct{}
	dies   string // what it dies of after its first wait, of a fault
}

// worker starts a task and returns its UPID.
func (c *call) worker(kind, id string, run func(t *task) error) string {
	dies := ""
	if c.fault != nil && c.fault.action == taskDies {
		dies = c.fault.text
	}
	endless := c.fault != nil && c.fault.action == taskHangs
	return c.s.spawn(c.node.Name, kind, id, c.user, dies, func(t *task) error {
		if endless {
			for t.sleep(time.Second) == nil {
				if c.fault.text != "" {
					t.log(c.fault.text)
				}
			}
			return errInterrupted
		}
		return run(t)
	}).upid
}

// mostTasks are kept of a cluster that forgets: Proxmox, too, keeps the last ones alone.
const mostTasks = 1000

func (s *Server) spawn(node, kind, id, user, dies string, run func(t *task) error) *task {
	s.nextPID++
	t := &task{s: s, node: node, kind: kind, id: id, user: user, pid: s.nextPID, pstart: 430000 + int(s.now().Sub(s.began)/(10*time.Millisecond)), began: s.now(), done: make(chan struct{}), dies: dies}
	t.upid = fmt.Sprintf("UPID:%s:%08X:%08X:%08X:%s:%s:%s:", node, t.pid, t.pstart, t.began.Unix(), kind, id, user)
	t.ctx, t.stop = context.WithCancel(s.context)
	s.tasks = append(s.tasks, t)
	gate := s.gate
	if over := len(s.tasks) - mostTasks; s.options.Forget && over > 0 {
		s.tasks = slices.Delete(s.tasks, 0, over)
	}
	s.work.Go(func() {
		defer close(t.done)
		defer t.stop()
		if gate != nil {
			select {
			case <-gate:
			case <-t.ctx.Done():
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		err := t.sleep(20 * time.Millisecond)
		if err == nil {
			err = run(t)
		}
		t.exit, t.ended = "OK", s.now()
		if err != nil {
			t.exit, _, _ = strings.Cut(err.Error(), "\n")
			t.log("TASK ERROR: " + err.Error())
			return
		}
		t.log("TASK OK")
	})
	return t
}

// Wait ends when a task has, and says how it did.
func (s *Server) Wait(upid string) string {
	s.mu.Lock()
	i := slices.IndexFunc(s.tasks, func(t *task) bool { return t.upid == upid })
	if i < 0 {
		s.mu.Unlock()
		return "no such task"
	}
	t := s.tasks[i]
	s.mu.Unlock()
	<-t.done
	s.mu.Lock()
	defer s.mu.Unlock()
	return t.exit
}

func (t *task) log(line string) { t.lines = append(t.lines, line) }

func (t *task) sleep(d time.Duration) error {
	if !t.s.wait(t.ctx, d) {
		return fmt.Errorf("received interrupt")
	}
	if t.dies != "" {
		return fmt.Errorf("%s", t.dies)
	}
	return nil
}

// waiter is what can wait for a lock file: a task, or a request.
type waiter interface {
	log(string)
	sleep(time.Duration) error
}

// lockFile takes a machine's lock file within ten seconds, alone or together with others, and
// returns what gives it back.
func (s *Server) lockFile(w waiter, vmid int, together bool, within time.Duration) (func(), error) {
	free := func() bool { return s.held[vmid] == 0 || together && s.held[vmid] > 0 }
	if !free() {
		w.log("trying to acquire lock...")
		for end := s.now().Add(within); !free(); {
			if s.now().After(end) {
				return nil, fmt.Errorf("can't lock file '/var/lock/qemu-server/lock-%d.conf' - got timeout", vmid)
			}
			if err := w.sleep(50 * time.Millisecond); err != nil {
				return nil, err
			}
		}
		w.log(" OK")
	}
	if together {
		s.held[vmid]++
		return func() { s.held[vmid]-- }, nil
	}
	s.held[vmid] = -1
	return func() { s.held[vmid] = 0 }, nil
}

const lockWithin = 10 * time.Second

// shown is a task as lists and its status have it.
func (t *task) shown(list, active bool) map[string]any {
	user, token, isToken := strings.Cut(t.user, "!")
	out := map[string]any{"upid": t.upid, "node": t.node, "type": t.kind, "id": t.id, "pid": t.pid, "pstart": t.pstart, "starttime": t.began.Unix(), "user": user}
	if isToken {
		out["tokenid"] = token
	}
	switch {
	case active:
		out["user"], out["status"], out["saved"] = t.user, "RUNNING", "0"
		delete(out, "tokenid")
	case list && !t.ended.IsZero():
		out["status"], out["endtime"] = t.exit, t.ended.Unix()
	case !list && t.ended.IsZero():
		out["status"] = "running"
	case !list:
		out["status"], out["exitstatus"] = "stopped", t.exit
	}
	return out
}

// sees reports whether the caller may read a task.
func (c *call) sees(t *task) bool {
	return t.user == c.user || c.may("/nodes/"+t.node, "Sys.Audit")
}

func (c *call) listTasks() (any, error) {
	source, limit, start := c.params["source"], c.number("limit", 50), c.number("start", 0)
	all := []map[string]any{}
	n := 0
	for _, t := range slices.Backward(c.s.tasks) {
		user, _, _ := strings.Cut(t.user, "!")
		running := t.ended.IsZero()
		switch {
		case t.node != c.node.Name, !c.sees(t),
			running && source != "active" && source != "all", !running && source == "active",
			c.params["vmid"] != "" && t.id != c.params["vmid"],
			c.params["typefilter"] != "" && t.kind != c.params["typefilter"],
			c.has("errors") && t.exit == "OK",
			c.params["statusfilter"] == "ok" && t.exit != "OK",
			c.params["userfilter"] != "" && !strings.Contains(user, c.params["userfilter"]),
			c.params["since"] != "" && t.began.Unix() < int64(c.number("since", 0)):
			continue
		}
		if n++; n > start && len(all) < limit {
			all = append(all, t.shown(true, running))
		}
	}
	if n > 0 {
		c.total = n
	}
	return all, nil
}

func (c *call) clusterTasks() (any, error) {
	all := []map[string]any{}
	for _, t := range slices.Backward(c.s.tasks) {
		if c.sees(t) && len(all) < 25 {
			shown := t.shown(true, false)
			shown["saved"] = "1"
			if t.ended.IsZero() {
				shown["saved"] = "0"
			} else {
				delete(shown, "pid")
			}
			delete(shown, "pstart")
			all = append(all, shown)
		}
	}
	return all, nil
}

// theTask is the task that the path names, if the caller may read it.
func (c *call) theTask() (*task, error) {
	parts := strings.Split(c.params["upid"], ":")
	if len(parts) != 9 || parts[0] != "UPID" {
		return nil, wrong("upid", "unable to parse worker upid")
	}
	if parts[7] != c.user {
		if err := c.need("/nodes/"+c.node.Name, "Sys.Audit"); err != nil {
			return nil, err
		}
	}
	for _, t := range c.s.tasks {
		if t.upid == c.params["upid"] && t.node == c.node.Name {
			return t, nil
		}
	}
	return nil, nil
}

func (c *call) taskStatus() (any, error) {
	t, err := c.theTask()
	if err != nil {
		return nil, err
	}
	if t == nil {
		return nil, wrong("upid", "no such task")
	}
	return t.shown(false, false), nil
}

func (c *call) taskLog() (any, error) {
	t, err := c.theTask()
	if err != nil {
		return nil, err
	}
	lines := []string{"unable to open file - No such file or directory"}
	if t != nil {
		lines = t.lines
	}
	if c.has("download") {
		return answer{status: 200, reason: "OK", text: strings.Join(lines, "\n") + "\n"}, nil
	}
	if len(lines) == 0 {
		c.total = 1
		return []map[string]any{{"n": 1, "t": "no content"}}, nil
	}
	out := []map[string]any{}
	limit := c.number("limit", 50)
	for i, line := range lines {
		if i >= c.number("start", 0) && (limit == 0 || len(out) < limit) {
			out = append(out, map[string]any{"n": i + 1, "t": line})
		}
	}
	c.total = len(lines)
	return out, nil
}

func (c *call) stopTask() (any, error) {
	t, err := c.theTask()
	if err != nil || t == nil {
		return nil, err
	}
	if t.ended.IsZero() {
		t.stop()
		return nil, c.sleep(2 * time.Second)
	}
	return nil, nil
}
