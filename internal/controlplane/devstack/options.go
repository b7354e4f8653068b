package devstack

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"

	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/controlplane/web"
	"github.com/tendril-run/tendril/internal/source"
)

// Defaults of Options.
const (
	DefaultListen = "127.0.0.1:8080"
	DefaultSlots  = 2
	// ClusterName is the cluster that the local agent belongs to.
	ClusterName = "local"
)

// Options says what to start and where.
type Options struct {
	DataDir string // empty: that of package instance
	// Throwaway says that the caller has just made DataDir for this Stack alone, and
	// removes it: it needs no marker, whose key would outlive it.
	Throwaway bool
	// TrustDataDir vouches for what a data directory without a valid marker has.
	TrustDataDir bool
	Listen       string // host:port of the HTTP server; empty: DefaultListen
	// CertFile and KeyFile are for other machines than this one, which Listen may
	// let in; without them AllowHTTP is needed for that.
	CertFile, KeyFile string
	AllowHTTP         bool
	// DatabaseURL uses that database rather than a private one.
	DatabaseURL string
	Slots       int // how many provisions run at once; 0: DefaultSlots
	// AllowRepos are patterns of repositories that the agent may run besides
	// the sample templates.
	AllowRepos []string
	// RequesterKeys are the agent's policy.requester_keys: those of who starts it.
	RequesterKeys []string
	// AgentCommand runs the agent, to be followed by --config FILE.
	AgentCommand []string
	// Sample fills the private database with sample data, once; see package
	// sample.
	Sample bool
	// InspectCommand runs what looks at templates, see package inspect; without
	// it the agent does.
	InspectCommand []string
	// Version is this program's, for people.
	Version string
	// Report is told how the start and the end go.
	Report Reporter
}

// Reporter hears how a start or an end goes. Its methods may be called from
// several goroutines.
type Reporter interface {
	// Step says that something begins that may take a while. The function it
	// returns is called once with what came of it, when it has succeeded.
	Step(name string) (done func(detail string))
	// Note says one thing worth reading.
	Note(text string)
}

// complete fills in the defaults and refuses what cannot work, before anything
// is made.
func (o Options) complete() (Options, error) {
	o.DataDir = cmp.Or(o.DataDir, instance.DefaultDataDir())
	o.Listen = cmp.Or(o.Listen, DefaultListen)
	o.Slots = cmp.Or(o.Slots, DefaultSlots)
	if o.Slots < 1 || o.Slots > 64 {
		return o, fmt.Errorf("%d slots: from 1 to 64 are possible", o.Slots)
	}
	if err := web.CheckPlain(o.Listen, o.CertFile, o.KeyFile, o.AllowHTTP); err != nil {
		return o, err
	}
	if len(o.AgentCommand) == 0 || o.Report == nil {
		return o, errors.New("devstack: AgentCommand and Report are required")
	}
	if o.DataDir == "" {
		return o, instance.ClaimDataDir("", false)
	}
	dir, err := filepath.Abs(o.DataDir)
	if err != nil {
		return o, fmt.Errorf("find the data directory %s: %w", o.DataDir, err)
	}
	o.DataDir = dir
	if o.Sample && o.DatabaseURL != "" {
		return o, errors.New("sample data is for the private database of a data directory alone: what is in it cannot be removed by itself, only with that")
	}
	if o.DatabaseURL != "" {
		// The agent gets the same URL with a login of its own in it.
		if u, err := url.Parse(o.DatabaseURL); err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
			return o, errors.New("the database must be given as a URL, postgres://USER:PASSWORD@HOST/DATABASE")
		}
	}
	if _, err := source.ParseAllowlist([]string{o.templatePattern()}, true); err != nil {
		return o, fmt.Errorf("the data directory %s cannot hold git repositories, for no URL can name it: choose one with plain letters, digits and . _ - in its path", o.DataDir)
	}
	if _, err := source.ParseAllowlist(o.AllowRepos, true); err != nil {
		return o, err
	}
	return o, nil
}

func (o Options) path(names ...string) string {
	return filepath.Join(append([]string{o.DataDir}, names...)...)
}
