package terraform

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-version"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	tfjson "github.com/hashicorp/terraform-json"
	"github.com/zclconf/go-cty/cty"

	"github.com/tendril-run/tendril/internal/durable"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/timelimit"
)

// versionCache remembers the versions of binaries between runs, in a file of
// the directory that engines are installed in: asking one costs about 50 ms.
// The file is a convenience. One that is torn, or cannot be written, only costs
// the question; of two writers at once the later wins.
type versionCache struct {
	path string // "" without a directory
}

func newVersionCache(dir string) *versionCache {
	if dir == "" {
		return &versionCache{}
	}
	return &versionCache{path: filepath.Join(dir, "versions.json")}
}

// knownVersion is what a binary answered when it had that size and time.
type knownVersion struct {
	Size    int64     `json:"size"`
	ModTime time.Time `json:"mtime"`
	Version string    `json:"version"`
}

// maxKnownVersions bounds the file, should paths come and go.
const maxKnownVersions = 100

// of returns a binary's version. The error completes a sentence that begins
// with the path.
func (c *versionCache) of(ctx context.Context, binary string) (string, error) {
	info, err := os.Stat(binary) //nolint:gosec // PATH is the agent's own
	if err != nil {
		return "", err
	}
	known := c.load()
	if k, ok := known[binary]; ok && k.Size == info.Size() && k.ModTime.Equal(info.ModTime()) && k.Version != "" {
		return k.Version, nil
	}
	version, err := askVersion(ctx, binary)
	if err != nil {
		return "", err
	}
	known[binary] = knownVersion{Size: info.Size(), ModTime: info.ModTime(), Version: version}
	c.save(known)
	return version, nil
}

func (c *versionCache) load() map[string]knownVersion {
	known := make(map[string]knownVersion)
	if c.path == "" {
		return known
	}
	content, err := os.ReadFile(c.path)
	if err != nil || json.Unmarshal(content, &known) != nil || known == nil {
		return make(map[string]knownVersion)
	}
	return known
}

// save replaces the file. Failing is not worth an error, see versionCache.
func (c *versionCache) save(known map[string]knownVersion) {
	if c.path == "" {
		return
	}
	maps.DeleteFunc(known, func(path string, _ knownVersion) bool {
		_, err := os.Stat(path)
		return err != nil
	})
	for _, path := range slices.Sorted(maps.Keys(known)) {
		if len(known) <= maxKnownVersions {
			break
		}
		delete(known, path)
	}
	content, err := json.Marshal(known)
	if err != nil {
		return
	}
	dir := filepath.Dir(c.path)
	if os.MkdirAll(dir, 0o755) != nil { //nolint:gosec // other users of this machine run the engines in it
		return
	}
	_ = durable.WriteFile(c.path, content)
}

// askTimeout is how long a binary may take to say its version.
const askTimeout = 30 * time.Second

// busyPause is how long is waited at first for a file that is still open for
// writing elsewhere.
const busyPause = 5 * time.Millisecond

// askVersion runs `BINARY version`, with nothing in its environment and in a
// directory without a template.
func askVersion(ctx context.Context, binary string) (string, error) {
	ctx, cancel := timelimit.Context(ctx, askTimeout)
	defer cancel()
	dir, err := os.MkdirTemp("", "tendril-version-*")
	if err != nil {
		return "", fmt.Errorf("cannot be asked for its version: %w", err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // an empty directory in the temporary one
	runner, err := newRunner(Engine{Kind: filepath.Base(binary), Path: binary}, Options{
		Dir: dir, Env: []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH")}, KillAfter: time.Second,
	})
	if err != nil {
		return "", err
	}
	var shown bytes.Buffer
	ask := func() error {
		shown.Reset()
		run := runner.command("version", "")
		run.into = &shown
		return run.do(ctx, "-json")
	}
	err = ask()
	// A process that we started while the file was written has it open for
	// writing until its own execve (golang.org/issue/22315).
	for pause := busyPause; errors.Is(err, syscall.ETXTBSY) && pause < time.Second; pause *= 2 {
		select {
		case <-time.After(pause):
			err = ask()
		case <-ctx.Done():
			return "", fmt.Errorf("does not say its version: %w", timelimit.Why(ctx, err))
		}
	}
	if err != nil && timelimit.Reached(ctx) {
		return "", fmt.Errorf("%w to say its version", context.Cause(ctx))
	}
	if err != nil {
		return "", fmt.Errorf("does not say its version: %s", truncate(strings.TrimSpace(err.Error()), 512))
	}
	var said tfjson.VersionOutput
	_ = json.Unmarshal(shown.Bytes(), &said) // engines without -json say it as text
	if plain := versionText.FindSubmatch(shown.Bytes()); said.Version == "" && plain != nil {
		said.Version = string(plain[1])
	}
	known, err := version.NewVersion(said.Version)
	if err != nil {
		return "", errors.New("does not say its version")
	}
	return known.String(), nil
}

var versionText = regexp.MustCompile(`^(?:Terraform|OpenTofu) v(\S+)`)

// choose returns the engine to take of those at the paths: the first that
// serves, or where only the template says what does, the newest.
func (s *search) choose(ctx context.Context, paths func(yield func(string) bool)) (best Engine, found bool) {
	var newest *version.Version
	for path := range paths {
		engine, ok := s.try(ctx, path)
		switch {
		case ctx.Err() != nil:
			return Engine{}, false
		case !ok:
			continue
		case s.want != nil || len(s.by) == 0:
			return engine, true
		}
		if v, err := version.NewVersion(engine.Version); err == nil && (newest == nil || v.GreaterThan(newest)) {
			best, newest = engine, v
		}
	}
	return best, newest != nil
}

// candidates yields the paths to try, in order; not all of them exist.
func (s *search) candidates() func(yield func(string) bool) {
	return func(yield func(string) bool) {
		var paths []string
		if s.cfg.Dir != "" {
			paths = append(paths, s.inDir(s.cfg.Dir)...)
		}
		for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
			if filepath.IsAbs(dir) { // a relative one may lead into a template
				paths = append(paths, filepath.Join(dir, s.kind))
			}
		}
		paths = append(paths, s.installed()...)
		for _, path := range paths {
			if !yield(path) {
				return
			}
		}
	}
}

// inDir lists what the agent's own directory may hold.
func (s *search) inDir(dir string) []string {
	if s.want != nil {
		return []string{
			filepath.Join(dir, s.kind+"_"+s.want.String()),
			filepath.Join(dir, s.kind, s.want.String(), s.kind),
			filepath.Join(dir, s.kind),
		}
	}
	paths := []string{filepath.Join(dir, s.kind)}
	for _, pattern := range []string{s.kind + "_*", filepath.Join(s.kind, "*", s.kind)} {
		paths = append(paths, newestFirst(filepath.Join(dir, pattern), s.kind)...)
	}
	return paths
}

// installed lists what Locate installed before.
func (s *search) installed() []string {
	if s.installDir == "" {
		return nil
	}
	if s.want != nil {
		return []string{s.installedPath(s.want.String())}
	}
	return newestFirst(s.installedPath("*"), s.kind)
}

func (s *search) installedPath(version string) string {
	return filepath.Join(s.installDir, s.kind, version, s.kind)
}

// newestFirst expands a pattern whose star stands for a version.
func newestFirst(pattern, kind string) []string {
	matches, err := filepath.Glob(pattern)
	if err != nil {
		return nil
	}
	versionOf := func(path string) *version.Version {
		text, ok := strings.CutPrefix(filepath.Base(path), kind+"_")
		if !ok {
			text = filepath.Base(filepath.Dir(path))
		}
		v, err := version.NewSemver(text)
		if err != nil {
			return nil
		}
		return v
	}
	matches = slices.DeleteFunc(matches, func(path string) bool { return versionOf(path) == nil })
	slices.SortFunc(matches, func(a, b string) int { return versionOf(b).Compare(versionOf(a)) })
	return matches
}

// try looks at one path and remembers why it does not serve.
func (s *search) try(ctx context.Context, path string) (Engine, bool) {
	binary, err := resolve(path)
	if errors.Is(err, os.ErrNotExist) {
		return Engine{}, false
	}
	var found string
	if err == nil {
		found, err = s.versions.of(ctx, binary)
	}
	if err != nil {
		s.pass(path, err.Error())
		return Engine{}, false
	}
	v, err := version.NewVersion(found)
	if err == nil && s.tooOld(v) {
		s.pass(path, "is version "+found+", and "+s.floor())
		return Engine{}, false
	}
	if err != nil || s.want != nil && !v.Equal(s.want) || !s.admits(v) {
		s.pass(path, "is version "+found)
		return Engine{}, false
	}
	return Engine{Kind: s.kind, Path: binary, Version: found}, true
}

func (s *search) pass(path, why string) {
	if note := path + " " + why; !slices.Contains(s.passed, note) {
		s.passed = append(s.passed, note)
	}
}

// resolve returns the binary behind path. The error completes a sentence that
// begins with the path.
func resolve(path string) (string, error) {
	binary, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	if binary, err = filepath.Abs(binary); err != nil {
		return "", err
	}
	info, err := os.Stat(binary)
	if err != nil {
		return "", err
	}
	if info.IsDir() { // DIR/KIND may hold the versions
		return "", os.ErrNotExist
	}
	if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return "", errors.New("is not an executable file")
	}
	file, err := os.Open(binary)
	if err != nil {
		// Executable and not readable: it cannot be looked at, yet it may run.
		return binary, nil
	}
	defer file.Close() //nolint:errcheck // opened for reading
	magic := make([]byte, 2)
	if _, err := io.ReadFull(file, magic); err != nil {
		return "", errors.New("is empty")
	}
	if bytes.Equal(magic, []byte("#!")) {
		return "", errors.New("is a script, most likely a version manager's shim, which would not pass an interrupt on")
	}
	return binary, nil
}

// Constraint is a required_version of a template.
type Constraint struct {
	Text string // ">= 1.9"
	At   string // where it stands: "versions.tf:2"
	// Legacy says that OpenTofu heeds it before version 1.12 only: it stands in a
	// .tf file and so speaks, to the newer ones, of Terraform.
	Legacy bool
}

// ModuleCall is a module that a template uses.
type ModuleCall struct {
	Name   string
	Source string // "" where it is no literal text, which OpenTofu allows
	At     string
}

// Needs is what a module asks of its engine and of the world.
type Needs struct {
	Versions []Constraint
	Modules  []ModuleCall
}

// ReadNeeds reads what the module in dir needs, as an engine of that kind would.
// A module that an override file calls otherwise is listed twice, for whoever
// judges sources must not depend on which of them wins. A file that does not
// parse fails with CodeTemplateInvalid.
func ReadNeeds(dir, kind string) (Needs, error) {
	files, err := configFiles(dir)
	if err != nil {
		return Needs{}, err
	}
	files = readBy(kind, files)
	var found Needs
	for _, override := range []bool{false, true} {
		for _, name := range files {
			if isOverride(name) != override {
				continue
			}
			n, err := readNeedsFile(dir, kind, name)
			if err != nil {
				return Needs{}, err
			}
			if override && len(n.Versions) > 0 { // as the engines do
				found.Versions = nil
			}
			found.Versions = append(found.Versions, n.Versions...)
			found.Modules = append(found.Modules, n.Modules...)
		}
	}
	return found, nil
}

func readNeedsFile(dir, kind, name string) (Needs, error) {
	content, err := parseConfig(dir, name, &hcl.BodySchema{Blocks: []hcl.BlockHeaderSchema{
		{Type: "terraform"}, {Type: "module", LabelNames: []string{"name"}}, {Type: "language"},
	}})
	if err != nil {
		return Needs{}, err
	}
	var n Needs
	for _, block := range content.Blocks {
		switch block.Type {
		case "module":
			source, at := literal(block, "source")
			n.Modules = append(n.Modules, ModuleCall{Name: block.Labels[0], Source: source, At: at})
		case "terraform":
			if text, at := literal(block, "required_version"); text != "" {
				n.Versions = append(n.Versions, Constraint{Text: text, At: at, Legacy: kind == OpenTofu && !strings.Contains(strings.TrimPrefix(name, stem(name)), ".tofu")})
			}
		case "language":
			if kind != OpenTofu {
				continue
			}
			inner, _, _ := block.Body.PartialContent(&hcl.BodySchema{Blocks: []hcl.BlockHeaderSchema{{Type: "compatible_with"}}})
			for _, with := range inner.Blocks {
				if text, at := literal(with, "opentofu"); text != "" {
					n.Versions = append(n.Versions, Constraint{Text: text, At: at})
				}
			}
		}
	}
	return n, nil
}

// literal is the text of an argument and where it stands; "" where it is no
// literal text, or there is none. What is wrong with it the engine says itself.
func literal(block *hcl.Block, argument string) (text, at string) {
	inner, _, _ := block.Body.PartialContent(&hcl.BodySchema{Attributes: []hcl.AttributeSchema{{Name: argument}}})
	where := block.DefRange
	if attribute, ok := inner.Attributes[argument]; ok {
		where = attribute.Range
		if v, diags := attribute.Expr.Value(nil); !diags.HasErrors() && v.Type() == cty.String && v.IsKnown() && !v.IsNull() {
			text = v.AsString()
		}
	}
	return text, fmt.Sprintf("%s:%d", where.Filename, where.Start.Line)
}

// parseConfig reads, of one configuration file, what a schema names.
func parseConfig(dir, name string, schema *hcl.BodySchema) (*hcl.BodyContent, error) {
	path := filepath.Join(dir, name)
	if info, err := os.Stat(path); err == nil && info.Size() > maxConfigFile {
		return nil, provision.Fail(provision.CodeTemplateInvalid, fmt.Sprintf(
			"%s has %d bytes, more than the %d that are read of one file", name, info.Size(), maxConfigFile), nil)
	}
	source, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the template: %w", err)
	}
	parser := hclparse.NewParser()
	parse := parser.ParseHCL
	if strings.HasSuffix(name, ".json") {
		parse = parser.ParseJSON
	}
	file, diags := parse(source, name)
	if diags.HasErrors() {
		return nil, invalid(diags)
	}
	content, _, diags := file.Body.PartialContent(schema)
	if diags.HasErrors() {
		return nil, invalid(diags)
	}
	return content, nil
}
