package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/source"
)

// git lists the references of the repositories that are known by name.
func (d *doctor) git(ctx context.Context) verdict {
	repos := slices.Clone(d.Repos)
	for _, pattern := range d.Config.Policy.Repos {
		if !strings.Contains(pattern, "*") && !slices.Contains(repos, pattern) {
			repos = append(repos, pattern)
		}
	}
	probe, remove, err := d.source(ctx)
	if err != nil {
		return fail("put that right first: whatever needs it cannot be fetched", "%v", err)
	}
	defer remove()
	if problems := probe.CheckSSH(); len(problems) > 0 {
		return fail("put that right first: whatever needs it cannot be fetched", "%s", strings.Join(problems, "; "))
	}
	if len(repos) == 0 {
		return skipped("not looked at: policy.repos names no repository whole; name one by --repo")
	}
	problems := make([]string, len(repos))
	var all sync.WaitGroup
	for i, repo := range repos {
		all.Go(func() {
			err := probe.Probe(ctx, repo)
			if f, is := errors.AsType[*provision.Failure](err); is {
				problems[i] = strings.TrimPrefix(f.Message, "template_source.repo: ")
			} else if err != nil {
				problems[i] = fmt.Sprintf("no answer within %s", each)
			}
		})
	}
	all.Wait()
	problems = slices.DeleteFunc(problems, func(p string) bool { return p == "" })
	if len(problems) > 0 {
		return fail("check the URL, the network, and the credentials for its host in [git.hosts]", "%s", strings.Join(problems, "; "))
	}
	if len(repos) == 1 {
		return ok("the repository answers and lets the agent in")
	}
	return ok("all %d repositories answer and let the agent in", len(repos))
}

// source returns what resolves versions, with a directory of its own.
func (d *doctor) source(ctx context.Context) (_ *source.Source, remove func(), err error) {
	git, err := d.Git(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, host := range git.Hosts {
		d.hide(host.Token, host.Key)
	}
	git.Timeout = min(git.Timeout, each-grace)
	dir, err := os.MkdirTemp("", "tendril-doctor-*")
	if err != nil {
		return nil, nil, fmt.Errorf("make a temporary directory: %w", err)
	}
	remove = func() { _ = os.RemoveAll(dir) }
	s, err := source.New(source.Options{Policy: d.Config.Settings().Policy, Git: git, ReposDir: dir})
	if err != nil {
		remove()
	}
	return s, remove, err
}
