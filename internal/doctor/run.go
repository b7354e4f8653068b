package doctor

import (
	"context"
	"time"

	"github.com/tendril-run/tendril/internal/timelimit"
)

const (
	// each bounds one check, whole all of them, one after the other or not.
	each  = 5 * time.Second
	whole = 13 * time.Second
	// engineLimit bounds the check of the engine, which needs no other: a machine that
	// is busy or has a slow disk takes long to load a program of 90 MB.
	engineLimit = 12 * time.Second
	// grace is how long a check may take to notice that its time is over.
	grace = 300 * time.Millisecond
)

// check looks at one thing. It has nothing to say where one of those that it
// needs failed or was skipped; they stand before it.
type check struct {
	name  string
	needs []string
	run   func(context.Context) verdict
	limit time.Duration
}

// running is a check under way.
type running struct {
	done   chan struct{}
	result Result
}

// runAll runs checks side by side as far as their needs allow, and returns what
// they found in their own order.
func runAll(ctx context.Context, checks []check) []Result {
	ctx, cancel := timelimit.Context(ctx, whole)
	defer cancel()
	all := make(map[string]*running, len(checks))
	for _, c := range checks {
		r := &running{done: make(chan struct{})}
		needs := make([]*running, len(c.needs))
		for i, name := range c.needs {
			needs[i] = all[name]
		}
		all[c.name] = r
		go func() {
			defer close(r.done)
			v := c.after(ctx, needs)
			r.result = Result{Name: c.name, Status: v.status, Message: v.message, Action: v.action}
		}()
	}
	results := make([]Result, len(checks))
	for i, c := range checks {
		<-all[c.name].done
		results[i] = all[c.name].result
	}
	return results
}

func (c check) after(ctx context.Context, needs []*running) verdict {
	for _, need := range needs {
		<-need.done
		if status := need.result.Status; status == Fail || status == Skipped {
			return skipped("not looked at: it needs %s", need.result.Name)
		}
	}
	return c.within(ctx)
}

// within runs the check for as long as it may take. One that hangs in a system
// call, as a file system that has gone does it, is left behind.
func (c check) within(ctx context.Context) verdict {
	ctx, cancel := timelimit.Context(ctx, c.limit)
	defer cancel()
	began := time.Now()
	found := make(chan verdict, 1)
	go func() { found <- c.run(ctx) }()
	select {
	case v := <-found:
		return v
	case <-ctx.Done():
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case v := <-found:
		return v
	case <-timer.C:
		return fail("look at what it depends on (a network file system, a proxy) and try again",
			"gave no answer within %s", since(began))
	}
}

func since(began time.Time) string {
	return time.Since(began).Round(time.Millisecond).String()
}
