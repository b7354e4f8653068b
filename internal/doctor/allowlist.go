package doctor

import (
	"context"
	"errors"
	"strings"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/modules"
	"github.com/tendril-run/tendril/internal/policyhook"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/source"
)

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
			return fail("mend it: without its hook the agent refuses every plan", "policy.hook: %v", err)
		}
	}
	if len(policy.Repos) == 0 {
		return fail("list the repositories that templates may come from in policy.repos",
			"policy.repos is empty, so the agent refuses every provision")
	}
	may := strings.Join(policy.Operations, ", ") + approvals[provision.Approval(policy.Approval)]
	for _, pattern := range policy.Repos {
		if everybodys(pattern) {
			return warn("name the owner: HOST/OWNER/**", "%s lets whoever may push anywhere on that host run code here (%s)", pattern, may)
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
