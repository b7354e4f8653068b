package doctor

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/modules"
	"github.com/tendril-run/tendril/internal/policyhook"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/source"
	"github.com/tendril-run/tendril/internal/terraform"
	"github.com/tendril-run/tendril/internal/timelimit"
)

// secretFiles are the files in which the configuration keeps secrets, by key.
func (d *doctor) secretFiles() map[string]string {
	files := map[string]string{}
	queue := d.Config.Queue
	for key, path := range map[string]string{"queue.token_file": queue.TokenFile, "queue.url_file": queue.URLFile, "queue.listen_url_file": queue.ListenURLFile} {
		if path != "" {
			files[key] = path
		}
	}
	if d.File != "" && d.secretsInside() {
		files["the configuration"] = d.File
	}
	for _, entry := range d.Config.Credentials {
		for key, path := range entry.SecretFiles() {
			files[fmt.Sprintf("credentials.%q.%s", entry.Workspace, key)] = path
		}
	}
	for host, at := range d.Config.Git.Hosts {
		for key, path := range map[string]string{"token_file": at.TokenFile, "ssh_key_file": at.SSHKeyFile, "app_key_file": at.AppKeyFile} {
			if path != "" {
				files[fmt.Sprintf("git.hosts.%q.%s", host, key)] = path
			}
		}
	}
	return files
}

// secretsInside reports whether a secret may stand in the configuration file
// itself: it cannot be told from here whether it does or the environment has it.
func (d *doctor) secretsInside() bool {
	content, err := os.ReadFile(d.File)
	return err == nil && slices.ContainsFunc(d.secretValues(), func(value string) bool {
		return value != "" && strings.Contains(string(content), value)
	})
}

// secrets says who else may read the files that hold secrets.
func (d *doctor) secrets(context.Context) verdict {
	files := d.secretFiles()
	var open, chmod []string
	for key, path := range files {
		info, err := os.Stat(path) // through links: Kubernetes mounts secrets as such
		if errors.Is(err, fs.ErrNotExist) || err != nil {
			return fail("correct the path, or let the agent's user read it", "%s: %s cannot be read: %v", key, path, errors.Unwrap(err))
		}
		if mode := info.Mode().Perm(); mode&0o007 != 0 {
			open = append(open, fmt.Sprintf("%s (%s, mode %04o)", key, path, mode))
			chmod = append(chmod, strconv.Quote(path))
		}
	}
	if len(open) > 0 {
		slices.Sort(open)
		slices.Sort(chmod)
		return fail("run: chmod o= "+strings.Join(chmod, " "), "everybody on this machine can read %s, templates included", strings.Join(open, ", "))
	}
	if len(files) == 0 {
		return ok("no file of the configuration holds a secret")
	}
	return ok("others cannot read %s", counted(len(files), "file that holds a secret", "files that hold secrets"))
}

// templates says what the code that templates bring can look at here.
func (d *doctor) templates(context.Context) verdict {
	given := ""
	if names := d.givenSecrets(); len(names) > 0 {
		given = "; they are given " + strings.Join(names, ", ")
	}
	switch {
	case d.isolates():
		return ok("the agent runs as root, so each run gets an unprivileged uid: a template can read neither the agent's files nor another run's%s", given)
	case d.uid == 0:
		return warn("set run.uids to auto", "templates run as root (run.uids is off) and can read, and change, everything on this machine")
	}
	sees := []string{"local states and the work of other runs"}
	for _, path := range append(slices.Collect(maps.Values(d.secretFiles())), filepath.Join(d.Config.DataDir, "identity")) {
		if readable(path) {
			sees = append(sees, path)
		}
	}
	slices.Sort(sees[1:])
	if pid := shownBy(d.Config.Queue.Token.Reveal()); pid != "" {
		sees = append(sees, "the token in the environment of process "+pid)
	}
	return warn("let only templates you trust alike share this agent, start it as root, or run a pod per provision",
		"templates run under the agent's own uid, %d, and can read what it can: %s%s", d.uid, strings.Join(sees, ", "), given)
}

// givenSecrets names variables that every template is given, on purpose, and
// that look as if they held a secret.
func (d *doctor) givenSecrets() (names []string) {
	for _, entry := range d.Config.ChildEnv(d.Environ) {
		name, _, _ := strings.Cut(entry, "=")
		if slices.ContainsFunc([]string{"SECRET", "TOKEN", "PASSWORD", "PRIVATE", "API_KEY"}, func(part string) bool { return strings.Contains(name, part) }) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// shownBy returns a process whose environment shows the token to this uid: not
// an agent, which hides its own, but what started one.
func shownBy(token string) (pid string) {
	environments, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil || token == "" {
		return ""
	}
	for _, path := range environments {
		if content, err := os.ReadFile(path); err == nil && bytes.Contains(content, []byte(token)) {
			return filepath.Base(filepath.Dir(path))
		}
	}
	return ""
}

func readable(path string) bool {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	return err == nil && file.Close() == nil
}

// usualMetadata is where the large clouds tell a machine who it is, its
// credentials included.
const usualMetadata = "169.254.169.254:80"

func (d *doctor) metadata(ctx context.Context) verdict {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", cmp.Or(d.Metadata, usualMetadata))
	if err != nil {
		return ok("there is no cloud metadata service that templates could ask for the machine's role")
	}
	_ = conn.Close()
	return warn("keep them from it (in Kubernetes by networkPolicy.strict), or give the machine's role no more than they need",
		"templates can ask the cloud's metadata service (%s) for this machine's role", conn.RemoteAddr())
}

// counted writes a number with its noun.
func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func (d *doctor) allowlist(context.Context) verdict {
	policy := d.Config.Policy
	if _, err := source.ParseAllowlist(policy.Repos, policy.AllowFile); err != nil {
		return fail("correct policy.repos", "%v", err)
	}
	if _, err := modules.NewPolicy(job.Policy{AllowFile: policy.AllowFile, Modules: policy.Modules}, nil); err != nil {
		return fail("correct policy.modules", "%v", err)
	}
	if command := policy.Hook; len(command) > 0 { // which may have changed since the agent has started
		if err := errors.Join(policyhook.Executable(command[0]), policyhook.Guarded(command, d.Config.TemplatesUser())); err != nil {
			return fail("fix it: without its hook the agent refuses every plan", "policy.hook: %v", err)
		}
	}
	if len(policy.Repos) == 0 {
		return fail("list the repositories that templates may come from in policy.repos",
			"policy.repos is empty, so the agent refuses every provision")
	}
	may := strings.Join(policy.Operations, ", ") + approvals[provision.Approval(policy.Approval)]
	for _, pattern := range policy.Repos {
		if everybodys(pattern) {
			return warn("name the owner: HOST/OWNER/**", "%s lets anyone who may push anywhere on that host run code here (%s)", pattern, may)
		}
	}
	return ok("%s may run here (%s)", counted(len(policy.Repos), "pattern of repositories", "patterns of repositories"), may)
}

// approvals completes the list of operations: what this agent wants approved,
// whatever the database says.
var approvals = map[provision.Approval]string{
	provision.ApprovalDestructive: "; plans that destroy, replace or forget something must be approved",
	provision.ApprovalAlways:      "; each plan must be approved",
}

// everybodys reports whether a pattern leaves open whose repository it is.
func everybodys(pattern string) bool {
	_, rest, found := strings.Cut(pattern, "://")
	if !found || strings.HasPrefix(pattern, "file:") {
		return false
	}
	_, path, _ := strings.Cut(rest, "/")
	owner, _, _ := strings.Cut(path, "/")
	return strings.Contains(owner, "*")
}

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
		return skipped("not checked: policy.repos names no repository whole; name one by --repo")
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

// vendorURL is where Terraform comes from without a mirror.
const vendorURL = "https://releases.hashicorp.com"

// engine says which engine would run, or whether it can be had.
func (d *doctor) engine(ctx context.Context) verdict {
	look := d.Config.Settings().Engine
	look.Install = false // not now
	// Not in the directory of those that agents installed: there, Locate would
	// keep what it learns, and start as root what is an unprivileged user's.
	found, err := terraform.Locate(ctx, look, terraform.Want{}, "", nil)
	if err != nil {
		if installed, is := d.installed(); is {
			return d.runs(ctx, installed)
		}
	}
	wanted := strings.TrimSpace(d.Config.Engine.Kind + " " + d.Config.Engine.Version)
	switch {
	case err == nil:
		return d.runs(ctx, found)
	case timelimit.Reached(ctx):
		return slow("asking the engines of this machine for their versions", context.Cause(ctx))
	case provision.AsFailure(err).Code == provision.CodePolicyRefused:
		return fail("set engine.version to a version that the policy allows", "%s", provision.AsFailure(err).Message)
	case provision.AsFailure(err).Code != provision.CodeEngineMissing || !d.Config.Engine.Install || d.Config.Engine.Kind != terraform.Terraform:
		return fail("install it, or set engine.dir to where it is", "%s", provision.AsFailure(err).Message)
	}
	from, err := d.mirror(ctx)
	if err != nil {
		return fail("install it, or set engine.mirror_url to a mirror that this machine can reach", "%s is not here, and cannot be downloaded: %v", wanted, err)
	}
	return ok("%s is not here yet; the first run downloads it from %s", wanted, from)
}

// installed is the engine that an agent has downloaded before.
func (d *doctor) installed() (terraform.Engine, bool) {
	kind, version := d.Config.Engine.Kind, d.Config.Engine.Version
	if version == "" {
		version = "*"
	}
	found, err := filepath.Glob(filepath.Join(d.Config.DataDir, "engines", kind, version, kind))
	if err != nil || len(found) == 0 {
		return terraform.Engine{}, false
	}
	path := found[len(found)-1]
	return terraform.Engine{Kind: kind, Path: path, Version: filepath.Base(filepath.Dir(path))}, true
}

// nobody has no rights that a run would not have.
const nobody = 65534

// runs starts the engine as a run would: as an unprivileged user, if they do.
func (d *doctor) runs(ctx context.Context, engine terraform.Engine) verdict {
	if d.isolates() && !everybodyRuns(engine.Path) {
		return fail("install it where every user may run it, such as /usr/local/bin, and set engine.dir to that",
			"%s can be run by root alone, and runs have uids of their own", engine.Path)
	}
	cmd := exec.CommandContext(ctx, engine.Path, "version")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "CHECKPOINT_DISABLE=1"}
	cmd.Dir = "/"
	cmd.WaitDelay = grace
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if d.isolates() {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	said := &timelimit.Head{Limit: 4 << 10}
	cmd.Stdout, cmd.Stderr = said, said
	err := timelimit.Why(ctx, cmd.Run())
	if timelimit.Reached(ctx) {
		return slow(engine.Path+" version", err)
	}
	if err != nil {
		first, _, _ := strings.Cut(strings.TrimSpace(said.String()), "\n")
		return fail("install it again", "%s does not run: %v: %.200s", engine.Path, err, first)
	}
	if d.Config.Engine.Install && d.Config.Engine.MirrorURL != "" {
		if _, err := d.mirror(ctx); err != nil {
			return warn("correct engine.mirror_url", "%s %s runs (%s), but other versions that templates ask for cannot be downloaded: %v",
				engine.Kind, engine.Version, engine.Path, err)
		}
	}
	return ok("%s %s runs (%s)", engine.Kind, engine.Version, engine.Path)
}

// slow is the verdict on an engine that did not answer in the time of a check, which is
// less than a run gives it.
func slow(what string, err error) verdict {
	return warn("run the doctor again when the machine has less to do; if it happens again, check the disk that the engine is on",
		"%s %v, so it is not known whether it runs", what, err)
}

// everybodyRuns reports whether a user who has nothing in particular may run a
// program. What the agent installed itself, its runs may: the way to it is
// looked at with the data directory.
func everybodyRuns(program string) bool {
	info, err := os.Stat(program)
	return err == nil && info.Mode().Perm()&0o005 == 0o005 && shut(filepath.Dir(program)) == ""
}

// mirror asks where engines are downloaded from for the list of them.
func (d *doctor) mirror(ctx context.Context) (from string, err error) {
	base := d.Config.Engine.MirrorURL
	if base == "" {
		base = vendorURL
	}
	at, err := url.Parse(base)
	if err != nil {
		return "", fmt.Errorf("engine.mirror_url is no URL")
	}
	at = at.JoinPath("terraform", d.Config.Engine.Version, "index.json")
	client, _ := d.client(at, nil)
	client.CheckRedirect = nil
	client.Timeout = each - time.Second
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return "", fmt.Errorf("engine.mirror_url is no URL")
	}
	res, err := client.Do(req)
	if err != nil {
		return "", fmt.Errorf("%s does not answer: %w", at.Host, lastError(err))
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s answers %s to %s", at.Host, res.Status, at.Path)
	}
	return at.Host, nil
}
