package config

import (
	"cmp"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/hashicorp/go-version"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/lazyregexp"
	"github.com/tendril-run/tendril/internal/policyhook"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/secretfile"
	"github.com/tendril-run/tendril/internal/trust"
)

var (
	agentName   = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`).MatchString
	backendName = lazyregexp.New(`^[a-z][a-z0-9_]*$`).MatchString
	envPattern  = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*\*?$|^\*$`).MatchString
)

// within reports whether d lies between two durations, both included.
func (d Duration) within(least, most time.Duration) bool {
	return least <= d.Duration && d.Duration <= most
}

func oneOf(value string, allowed ...string) bool { return slices.Contains(allowed, value) }

func every(values []string, allowed func(string) bool) bool {
	return !slices.ContainsFunc(values, func(value string) bool { return !allowed(value) })
}

func publicKey(text string) bool {
	_, err := trust.ParseSigner(text)
	return err == nil
}

func isPrefix(text string) bool {
	_, err := netip.ParsePrefix(text)
	return err == nil
}

// prefixes are prefixes that were checked.
func prefixes(texts []string) (all []netip.Prefix) {
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, p)
		}
	}
	return all
}

// plainPath refuses what a shell would have expanded: here it would make a
// directory called ~.
func plainPath(path string) bool { return path != "" && !strings.HasPrefix(path, "~") }

func regularFile(path string) bool {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	return file.Close() == nil
}

func directory(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// pemFile reports whether a file begins, after any comment, with a certificate.
func pemFile(path string) bool {
	if !regularFile(path) {
		return false
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	block, _ := pem.Decode(data)
	return block != nil && block.Type == "CERTIFICATE"
}

// postgresURL goes by the scheme alone: what else is in it is up to the driver,
// which knows more forms than net/url.
func postgresURL(text string) bool {
	if strings.ContainsFunc(text, notVisible) {
		return false
	}
	scheme, rest, ok := strings.Cut(text, "://")
	return ok && oneOf(scheme, "postgres", "postgresql") && rest != ""
}

// notVisible finds what is in no URL and in no key.
func notVisible(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }

func webURL(text string) bool {
	parsed, err := url.Parse(text)
	return err == nil && oneOf(parsed.Scheme, "https", "http") && parsed.Host != ""
}

// listenAddress accepts what names a port by its number: services have names in
// few containers.
func listenAddress(text string) bool {
	host, port, err := net.SplitHostPort(text)
	if err != nil || strings.ContainsFunc(host, notVisible) || strings.ContainsAny(host, "/@") {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

func repoPattern(pattern string) bool {
	return pattern != "" && !strings.ContainsFunc(pattern, unicode.IsSpace)
}

func commitRef(pattern string) bool {
	kind, name, found := strings.Cut(strings.TrimPrefix(pattern, "refs/"), "/")
	if !strings.HasPrefix(pattern, "refs/") || !found || kind != "heads" && kind != "tags" {
		return false
	}
	for segment := range strings.SplitSeq(name, "/") {
		if segment == "" || strings.Contains(segment, "**") && segment != "**" || strings.ContainsAny(segment, `?[]\ `) {
			return false
		}
	}
	return true
}

func knownOperation(name string) bool {
	return slices.Contains(provision.Operations, provision.Operation(name))
}

// The oldest engines that may be allowed: Terraform's first with a lock file, and
// OpenTofu's first.
const (
	firstTerraform = "0.14.0"
	firstTofu      = "1.6.0"
)

// atLeast reports whether a text is an exact version, and not older than another.
func atLeast(text, oldest string) bool {
	if !provision.ExactVersion(text) {
		return false
	}
	v, err := version.NewSemver(text)
	return err == nil && !v.LessThan(version.Must(version.NewSemver(oldest)))
}

func exactOrNone(version string) bool { return version == "" || provision.ExactVersion(version) }

// uidRange leaves out the uids of the system, and room at the end for a block.
func uidRange(text string) bool {
	if text == "auto" || text == "off" {
		return true
	}
	first, err := strconv.ParseUint(text, 10, 32)
	return err == nil && 1000 <= first && first <= 4_294_000_000
}

// moduleSources completes "must be …" for policy.modules.
const moduleSources = "repository URLs, HOST/NAMESPACE/NAME/PROVIDER, archive::, s3::, gcs:: or hg:: and a URL, or **"

// checkHook asks for a program that is there and that templates cannot change: a
// hook is never skipped, so every run would fail.
func (l *loader) checkHook() {
	command := l.config.Policy.Hook
	if len(command) == 0 {
		return
	}
	if err := errors.Join(policyhook.Executable(command[0]), policyhook.Guarded(command, l.config.TemplatesUser())); err != nil {
		l.problem("policy.hook: %v", err)
	}
}

// checkJobs looks at what Jobs need.
func (l *loader) checkJobs() {
	c := l.config
	if c.Run.Launcher != Kubernetes {
		return
	}
	if c.Jobs.Image == "" {
		l.problem(`kubernetes.image: missing; with run.launcher = "kubernetes" set it to the image of this agent`)
	}
	if c.State.Backend == "" && c.State.Default != job.Managed || c.State.Backend == "local" {
		l.problem(`state.default: with run.launcher = "kubernetes" must be "managed", unless state.backend is set: a local state would be lost with the run's pod`)
	}
}

// nobody has no rights that a run with a uid of its own would not have.
const nobody = 65534

// TemplatesUser is who runs templates, or somebody with the same rights.
func (c Config) TemplatesUser() policyhook.User {
	if c.isolates(os.Geteuid()) {
		return policyhook.User{UID: nobody, Groups: []int{nobody}}
	}
	return policyhook.Self()
}

// providerMirror admits no user information: the URL ends up in a file that a
// template can read.
func providerMirror(place string) bool {
	if place == "" || filepath.IsAbs(place) && directory(place) {
		return true
	}
	parsed, err := url.Parse(place)
	return err == nil && parsed.Scheme == "https" && parsed.Host != "" && parsed.User == nil && parsed.RawQuery == "" && parsed.Fragment == ""
}

// reset gives the key its default again.
func (k key) reset(c *Config, env environment) {
	fresh := defaults(env)
	_ = k.set(c, k.text(fresh)) // what text writes, set reads
}

// describe names a key with its value and where that came from, and leaves out
// what may be a secret.
func (l *loader) describe(k key, value string) string {
	switch variable := l.fromEnv[k.name]; {
	case variable != "" && k.hidden:
		return k.name + " (" + variable + ")"
	case variable != "":
		return fmt.Sprintf("%s (%s=%s)", k.name, variable, strconv.Quote(value))
	case k.hidden:
		return k.name
	default:
		return k.name + " = " + strconv.Quote(value)
	}
}

// check holds every value against what its key allows.
func (l *loader) check() {
	c := l.config
	for _, k := range keys() {
		if k.check == nil || k.check(c) {
			continue
		}
		switch text := k.text(c); {
		case k.name == "queue.url" && text == "":
			l.problem("queue.url: missing; set it, or %s, to %s", k.env(), k.allowed)
		default:
			l.problem("%s: must be %s", l.describe(k, text), k.allowed)
		}
	}
	l.checkGitHosts()
	l.checkHook()
	l.checkJobs()
	if l.config.Engine.ProviderMirror != "" && slices.Contains(c.Run.PassEnv, engineConfig) {
		l.problem("engine.provider_mirror: run.pass_env names %s, which has mirrors of its own; keep one of them", engineConfig)
	}
	l.checkCredentials()
	l.checkPools()
	if _, err := l.config.Requesters(); err != nil {
		l.problem("%v", err)
	}
}

// tokenPrefix begins every cluster token.
const tokenPrefix = "tnd_"

// readCredential takes the token from the environment, else from its file; without one the agent
// has a key of its own.
func (l *loader) readCredential() {
	text, source := l.env[tokenEnv], tokenEnv
	q := &l.config.Queue
	if text == "" {
		if q.TokenFile == "" {
			l.readKey()
			return
		}
		var err error
		if text, err = secretfile.Read(q.TokenFile); err != nil {
			l.problem("queue.token_file = %q: %v", q.TokenFile, err)
			return
		}
		source, q.from.token = q.TokenFile, q.TokenFile
	}
	if l.joins {
		l.problem("%s: a token is configured, and the agent would use that and not its key; take it away", cmp.Or(q.from.token, tokenEnv))
		return
	}
	token, err := tokenIn(text)
	if err != nil {
		l.problem("%s: %v", source, err)
		return
	}
	q.Token = NewSecret(token)
}

// tokenIn is the token that a text has in it.
func tokenIn(text string) (string, error) {
	token := strings.TrimSpace(text)
	if !strings.HasPrefix(token, tokenPrefix) || strings.ContainsAny(token, " \t\r\n") {
		return "", fmt.Errorf("does not hold a cluster's token, which begins with %s and is one word", tokenPrefix)
	}
	return token, nil
}
