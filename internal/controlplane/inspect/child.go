package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/source"
	"github.com/tendril-run/tendril/internal/templatefile"
	"github.com/tendril-run/tendril/internal/tfvars"
)

// What a child may take. A template of any size that people write is far below.
const (
	maxMemory    = 1 << 30 // beyond it the kernel gives the child none, and it ends
	softMemory   = 256 << 20
	maxFiles     = 256 << 20 // bytes, of a checkout and of a pack
	maxEntries   = 50_000
	maxProcessor = 60 // seconds
	// answerLimit bounds the variables as JSON, in bytes.
	answerLimit = 256 << 10
)

// question is what a child is asked, on its stdin.
type question struct {
	Address, Version, Path, Pinned string
	Dir                            string // empty, for this child alone
	// Files are patterns of file:// repositories that may be read.
	Files []string
	// Private allows addresses that are not the Internet's.
	Private bool
	CAFile  string
	Timeout time.Duration
}

// answer is what it says, on its stdout.
type answer struct {
	Commit    string               `json:"commit,omitempty"`
	Variables []provision.Variable `json:"variables,omitempty"` // never nil where there is no problem
	About     *provision.About     `json:"about,omitempty"`
	Tags      []store.Tag          `json:"tags,omitempty"`
	Code      string               `json:"code,omitempty"`
	Problem   string               `json:"problem,omitempty"`
}

// Child looks at one repository: what a program runs when it is started by the
// command of Options. It returns its exit code. When in is closed, whoever asked
// has ended: then it stops, and removes what it has fetched.
func Child(in io.Reader, out io.Writer) int {
	if err := confine(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var q question
	if err := json.NewDecoder(in).Decode(&q); err != nil {
		fmt.Fprintln(os.Stderr, "this is started by trellis, with a question, not by hand:", err)
		return 1
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	a := look(ctx, q)
	if ctx.Err() != nil {
		fmt.Fprintln(os.Stderr, "who asked for this inspection has ended")
		_ = os.RemoveAll(q.Dir)
		return 1
	}
	if err := json.NewEncoder(out).Encode(a); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// confine gives up what a look at a repository does not need.
func confine() error {
	debug.SetMemoryLimit(softMemory)
	for _, l := range []struct {
		resource int
		most     uint64
	}{{unix.RLIMIT_DATA, maxMemory}, {unix.RLIMIT_FSIZE, maxFiles}, {unix.RLIMIT_CPU, maxProcessor}, {unix.RLIMIT_CORE, 0}} {
		if err := unix.Setrlimit(l.resource, &unix.Rlimit{Cur: l.most, Max: l.most}); err != nil {
			return fmt.Errorf("limit what an inspection may take: %w", err)
		}
	}
	return process.Undumpable()
}

// look is the inspection itself.
func look(ctx context.Context, q question) (a answer) {
	ctx, cancel := context.WithTimeout(ctx, q.Timeout)
	defer cancel()
	fail := func(err error) answer {
		failure := provision.AsFailure(err)
		a.Code, a.Problem, a.Variables = string(failure.Code), failure.Message, nil
		if failure.Code == provision.CodeInternal || errors.Is(err, context.DeadlineExceeded) {
			a.Code, a.Problem = string(provision.CodeCheckoutFailed), err.Error()
		}
		return a
	}
	options := source.Options{
		Policy: job.Policy{Repos: q.Files, AllowFile: len(q.Files) > 0}, Git: job.Git{Timeout: q.Timeout, CAFile: q.CAFile},
		ReposDir: filepath.Join(q.Dir, "repos"), AnyHTTPS: true, MaxBytes: maxFiles, MaxEntries: maxEntries,
	}
	if !q.Private {
		options.Dial = dialPublic
	}
	if err := os.Mkdir(options.ReposDir, 0o700); err != nil {
		return fail(err)
	}
	src, err := source.New(options)
	if err != nil {
		return fail(err)
	}
	if tags, err := src.Tags(ctx, q.Address); err == nil { // Resolve says what is wrong
		for name, commit := range tags {
			a.Tags = append(a.Tags, store.Tag{Tag: name, Commit: commit})
		}
		a.Tags = store.NewestTags(a.Tags) // of all of them the answer might be too long to be read
	}
	request := source.Request{Repo: q.Address, Version: q.Version, Path: q.Path, PinnedCommit: q.Pinned}
	resolved, err := src.Resolve(ctx, request)
	if err != nil {
		return fail(err)
	}
	tree, err := src.Checkout(ctx, request, resolved.Commit, filepath.Join(q.Dir, "tree"))
	if err != nil {
		return fail(err)
	}
	a.Commit = resolved.Commit // pinned from now on, whatever is wrong with the template
	declared, err := tfvars.Declared(tree.Dir)
	if err != nil {
		return fail(err)
	}
	file, err := templatefile.Read(tree.Dir)
	if err == nil {
		err = file.CheckVariables(declared)
	}
	if err != nil {
		return fail(err)
	}
	a.Variables, a.About = tfvars.Fit(declared, answerLimit), file.About()
	return a
}
