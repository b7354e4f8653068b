package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/process"
)

// What may befall the lives, and how often of each other, in the short suite and
// in the whole one. The short one has few of those that take seconds.
var misfortunes = []struct {
	what         string
	short, whole int
}{
	{agentKilled, 4, 6}, {runKilled, 3, 5}, {agentEnded, 1, 3}, {agentFrozen, 1, 2}, {databaseAway, 1, 2}, {clusterPaused, 1, 2},
}

const (
	agentKilled   = "SIGKILL of an agent"
	runKilled     = "SIGKILL of a run"
	agentEnded    = "SIGTERM of an agent"
	agentFrozen   = "SIGSTOP of an agent"
	databaseAway  = "Postgres stopped"
	clusterPaused = "the cluster paused"
)

// befall has one misfortune follow another until the lives are over.
func (l *lives) befall(over <-chan struct{}) {
	l.T.Helper()
	var next []string
	for {
		if len(next) == 0 {
			for _, m := range misfortunes {
				next = append(next, slices.Repeat([]string{m.what}, times(m.short, m.whole))...)
			}
			l.random.Shuffle(len(next), func(i, j int) { next[i], next[j] = next[j], next[i] })
		}
		select {
		case <-over:
			return
		case <-time.After(time.Duration(200+l.random.IntN(900)) * time.Millisecond):
		}
		l.strike(next[0], l.agents[l.random.IntN(len(l.agents))])
		next = next[1:]
	}
}

func (l *lives) strike(what string, a *site.Agent) {
	l.T.Helper()
	if what == runKilled {
		l.killRun(a)
		return
	}
	l.misfortune(what)
	switch what {
	case agentKilled:
		a.Kill()
		a.Start()
	case agentEnded:
		a.Terminate()
		a.Start()
	case agentFrozen:
		thaw := freeze(l.T, a, false)
		<-time.After(shortLease() + time.Second)
		thaw()
	case databaseAway:
		l.own.Crash(l.T)
		<-time.After(time.Duration(l.random.IntN(1500)) * time.Millisecond) // nobody answers for that long
		l.own.Start(l.T)
		l.reconnect()
	case clusterPaused:
		l.Exec(l.T, "SELECT public.pause_cluster($1)", l.Cluster)
		<-time.After(300 * time.Millisecond) // nothing begins for that long
		l.Exec(l.T, "SELECT public.pause_cluster($1, false)", l.Cluster)
	}
}

func (l *lives) misfortune(what string) {
	l.T.Logf("%s %s", time.Now().UTC().Format("15:04:05.000"), what)
	counted.add("lives: "+what, 1)
}

// killRun kills the process of one run, and so its engine.
func (l *lives) killRun(a *site.Agent) {
	l.T.Helper()
	children, err := process.Descendants(a.Cmd.Process.Pid)
	if err != nil {
		l.T.Fatal(err)
	}
	for _, child := range children {
		workspace := l.workspaceOf(a, child.PID)
		if child.Parent != a.Cmd.Process.Pid || workspace == "" {
			continue
		}
		l.torn[workspace] = append(l.torn[workspace], time.Now())
		l.misfortune(runKilled)
		_ = syscall.Kill(child.PID, syscall.SIGKILL) // it may have ended just now
		return
	}
}

// workspaceOf is the id of the workspace that a process works for.
func (l *lives) workspaceOf(a *site.Agent, pid int) string {
	cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	if err != nil {
		return ""
	}
	rest, ok := strings.CutPrefix(cwd, filepath.Join(a.Dir, "work")+string(filepath.Separator))
	if !ok {
		return ""
	}
	id, _, _ := strings.Cut(rest, string(filepath.Separator))
	return id
}
