package terraform

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-version"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
)

// The kinds of engines.
const (
	Terraform = "terraform"
	OpenTofu  = "tofu"
)

// Engine is a binary that was found and asked for its version.
type Engine struct {
	Kind    string // Terraform or OpenTofu
	Path    string // absolute, of the binary itself and not of a link to it
	Version string // "1.11.4"
}

// Want is what a snapshot asks for; empty fields take the agent's choice.
type Want struct {
	Kind, Version string
	// Constraints are those of the template. All of them must hold.
	Constraints []Constraint
}

// Locate finds the engine that is wanted: in cfg.Dir (as KIND_VERSION,
// KIND/VERSION/KIND or KIND), on PATH, among those installed in installDir
// before, and else, if cfg allows, installs it there. A wanted version must
// match exactly. Without one, the newest that the template's constraints admit
// is taken, wherever it is; and the agent's own version before that, if they
// admit it. Without constraints the first that is found serves, newest first
// within a directory.
//
// A script is passed over: a version manager's shim would take the interrupt
// that is meant for the engine. A shim that is itself a binary cannot be told
// from the real thing; point cfg.Dir past it.
//
// progress hears of what takes long; it may be nil. Locate fails with
// CodeBadSnapshot for a kind or version that cannot be or that the template does
// not admit, with CodeTemplateInvalid for a constraint that cannot be read, and
// with CodeEngineMissing.
func Locate(ctx context.Context, cfg job.Engine, want Want, installDir string, progress func(string)) (Engine, error) {
	search, err := newSearch(cfg, want, installDir)
	if err != nil {
		return Engine{}, err
	}
	if engine, ok := search.choose(ctx, search.candidates()); ok {
		return engine, nil
	}
	if ctx.Err() != nil {
		return Engine{}, fmt.Errorf("look for %s: %w", search.kind, context.Cause(ctx))
	}
	if progress == nil {
		progress = func(string) {}
	}
	return search.install(ctx, progress)
}

// search is one Locate.
type search struct {
	cfg  job.Engine
	kind string
	want *version.Version // nil: any that admitted holds
	// oldest is the oldest that the agent's policy allows; nil: any.
	oldest *version.Version
	// admitted are the template's constraints, parsed.
	by         []Constraint
	admitted   []version.Constraints
	installDir string
	timeout    time.Duration // of one download
	versions   *versionCache
	passed     []string // what was found and why it does not serve
}

func newSearch(cfg job.Engine, want Want, installDir string) (*search, error) {
	s := &search{cfg: cfg, installDir: installDir, timeout: installTimeout, versions: newVersionCache(installDir)}
	s.kind = first(want.Kind, cfg.Kind, Terraform)
	if s.kind != Terraform && s.kind != OpenTofu {
		return nil, provision.Fail(provision.CodeBadSnapshot, fmt.Sprintf(
			"terraform.engine: %q is neither %q nor %q", truncate(s.kind, 64), Terraform, OpenTofu), nil)
	}
	if err := s.readOldest(); err != nil {
		return nil, err
	}
	for _, c := range want.Constraints {
		parsed, err := version.NewConstraint(c.Text)
		if err != nil {
			return nil, provision.Fail(provision.CodeTemplateInvalid, fmt.Sprintf(
				"%s: required_version: %q is no constraint like >= 1.9", c.At, truncate(c.Text, 64)), err)
		}
		s.admitted, s.by = append(s.admitted, parsed), append(s.by, c)
	}
	if want.Version != "" {
		var err error
		if s.want, err = exact(want.Version); err != nil {
			return nil, err
		}
		if s.tooOld(s.want) {
			return nil, provision.Fail(provision.CodePolicyRefused, fmt.Sprintf(
				"terraform.version: the snapshot asks for %s %s, and %s", s.kind, s.want, s.floor()), nil)
		}
		if !s.admits(s.want) {
			return nil, provision.Fail(provision.CodeBadSnapshot, fmt.Sprintf(
				"terraform.version: the snapshot asks for %s %s, and the template for required_version %s. Change one of them",
				s.kind, s.want, s.constraints()), nil)
		}
		return s, nil
	}
	// The agent's version is one of the agent's kind, and gives way to what the
	// template asks for.
	if cfg.Version != "" && (want.Kind == "" || want.Kind == first(cfg.Kind, Terraform)) {
		v, err := exact(cfg.Version)
		if err != nil {
			return nil, err
		}
		switch {
		case s.tooOld(v):
			return nil, provision.Fail(provision.CodePolicyRefused, fmt.Sprintf(
				"engine.version of the agent's configuration is %s, and %s", v, s.floor()), nil)
		case s.admits(v):
			s.want = v
		default:
			s.passed = append(s.passed, "engine.version of the agent's configuration is "+v.String())
		}
	}
	return s, nil
}

// readOldest reads the agent's policy on this kind of engine.
func (s *search) readOldest() error {
	text := map[string]string{Terraform: s.cfg.OldestTerraform, OpenTofu: s.cfg.OldestTofu}[s.kind]
	if text == "" {
		return nil
	}
	var err error
	if s.oldest, err = version.NewSemver(text); err != nil {
		return fmt.Errorf("%s: %w", s.floorKey(), err)
	}
	return nil
}

// tooOld reports whether the agent's policy refuses a version. A pre-release
// counts as its release.
func (s *search) tooOld(v *version.Version) bool {
	return s.oldest != nil && v.Core().LessThan(s.oldest)
}

func (s *search) floorKey() string { return "policy.oldest_" + s.kind }

// floor says what the policy wants, and completes a sentence.
func (s *search) floor() string {
	return fmt.Sprintf("the agent's policy allows %s or newer (%s)", s.oldest, s.floorKey())
}

func exact(text string) (*version.Version, error) {
	v, err := version.NewSemver(strings.TrimPrefix(text, "v"))
	if err != nil || len(text) > 64 {
		return nil, provision.Fail(provision.CodeBadSnapshot, fmt.Sprintf(
			"terraform.version: %q is not a version like 1.11.4", truncate(text, 64)), err)
	}
	return v, nil
}

// heedsItsOwn is the first OpenTofu to which a .tf file's required_version says
// nothing.
var heedsItsOwn = version.Must(version.NewVersion("1.12.0"))

// admits reports whether all of the template's constraints hold of a version.
func (s *search) admits(v *version.Version) bool {
	for i, c := range s.by {
		if c.Legacy && s.kind == OpenTofu && v.Core().GreaterThanOrEqual(heedsItsOwn) {
			continue
		}
		if !s.admitted[i].Check(v) {
			return false
		}
	}
	return true
}

// all is every constraint, as Terraform heeds them.
func (s *search) all() version.Constraints { return slices.Concat(s.admitted...) }

// allowed is all, and what the agent's policy allows.
func (s *search) allowed() version.Constraints {
	if s.oldest == nil {
		return s.all()
	}
	return append(s.all(), version.MustConstraints(version.NewConstraint(">= "+s.oldest.String()))...)
}

// constraints names the template's constraints and where they stand.
func (s *search) constraints() string {
	var parts []string
	for _, c := range s.by {
		parts = append(parts, fmt.Sprintf("%q (%s)", truncate(c.Text, 64), c.At))
	}
	return truncate(strings.Join(parts, ", "), 1<<10)
}

// wanted is what is looked for, in words.
func (s *search) wanted() string {
	switch {
	case s.want != nil:
		return s.kind + " " + s.want.String()
	case len(s.by) > 0:
		return s.kind + " " + s.all().String()
	}
	return s.kind
}

func first(values ...string) string {
	i := slices.IndexFunc(values, func(v string) bool { return v != "" })
	return values[i]
}

// missing is the error when nothing was found; advice says what to do.
func (s *search) missing(advice string, cause error) error {
	message := fmt.Sprintf("%s is not on this agent: %s", s.wanted(), advice)
	if len(s.by) > 0 {
		message += ". The template wants required_version " + s.constraints()
	}
	if len(s.passed) > 0 {
		message += ". Passed over: " + truncate(strings.Join(s.passed, "; "), 2<<10)
	}
	return provision.Fail(provision.CodeEngineMissing, message, cause)
}
