package doctor

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/terraform"
	"github.com/tendril-run/tendril/internal/timelimit"
)

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
	return warn("run the doctor again when the machine has less to do; if it happens again, look at the disk that the engine is on",
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
