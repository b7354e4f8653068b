package config

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/tendril-run/tendril/internal/lazyregexp"
	"github.com/tendril-run/tendril/internal/provision"
)

const (
	tokenEnv     = "TENDRIL_API_TOKEN"
	joinTokenEnv = "TENDRIL_JOIN_TOKEN"
	// fileEnv names the configuration file; the command reads it.
	fileEnv = "TENDRIL_CONFIG"
)

// Invalid is a configuration's error: all that is wrong with it, for the person
// who wrote it. It holds no secret.
type Invalid struct{ Problems []string } //nolint:errname // config.Invalid reads as what it is

func (e *Invalid) Error() string {
	return "the agent's configuration is not valid:\n  " + strings.Join(e.Problems, "\n  ")
}

// environment is os.Environ as a map. An empty variable counts as unset.
type environment map[string]string

func newEnvironment(environ []string) environment {
	env := environment{}
	for _, entry := range environ {
		if name, value, ok := strings.Cut(entry, "="); ok && value != "" {
			env[name] = value
		}
	}
	return env
}

// Load reads the file at path ("" for none), then the environment, which wins,
// and checks the whole. A relative path in the file starts at the file's
// directory. What is wrong comes back as one *Invalid; only a file that cannot
// be read is another error.
func Load(path string, environ []string) (Config, error) {
	return (&loader{env: newEnvironment(environ), fromEnv: map[string]string{}}).load(path)
}

// LoadToJoin is Load for an agent that is to join: it needs no key and no token yet, and a token
// is a problem, for the agent would use that and not its key.
func LoadToJoin(path string, environ []string) (Config, error) {
	return (&loader{env: newEnvironment(environ), fromEnv: map[string]string{}, joins: true}).load(path)
}

func (l *loader) load(path string) (Config, error) {
	l.config = defaults(l.env)
	if path != "" {
		if err := l.readFile(path); err != nil {
			return Config{}, err
		}
	}
	if l.broken {
		return Config{}, &Invalid{Problems: l.problems}
	}
	l.readEnv()
	l.absolute("")
	l.readURLFiles()
	l.readSupabase()
	l.readJoined()
	l.check()
	l.checkQueue()
	l.readCredential()
	if len(l.problems) > 0 {
		return Config{}, &Invalid{Problems: l.problems}
	}
	return l.config, nil
}

// LoadPart reads a configuration of which only data_dir, identity_file and
// policy.identity_certifiers are wanted. It needs neither the queue's URL nor the token.
func LoadPart(path string, environ []string) (Config, error) {
	l := &loader{env: newEnvironment(environ), fromEnv: map[string]string{}}
	l.config = defaults(l.env)
	if path != "" {
		if err := l.readFile(path); err != nil {
			return Config{}, err
		}
	}
	l.readEnv()
	l.absolute("")
	if len(l.problems) > 0 {
		return Config{}, &Invalid{Problems: l.problems}
	}
	return l.config, nil
}

type loader struct {
	env      environment
	config   Config
	fromEnv  map[string]string // keys that the environment has set, by which variable
	problems []string
	// broken is true when the file could be read in part only: to check the
	// rest would complain of what stands in the other part.
	broken bool
	joins  bool // see LoadToJoin
}

func (l *loader) problem(format string, args ...any) {
	l.problems = append(l.problems, fmt.Sprintf(format, args...))
}

func (l *loader) readFile(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the agent's configuration: %w", err)
	}
	decoder := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields()
	err = decoder.Decode(&l.config)
	if strict, ok := errors.AsType[*toml.StrictMissingError](err); ok {
		for _, unknown := range strict.Errors {
			line, _ := unknown.Position()
			l.problem("%s:%d: %s", path, line, unknownKey(strings.Join(unknown.Key(), ".")))
		}
	} else if wrong, ok := errors.AsType[*toml.DecodeError](err); ok {
		line, _ := wrong.Position()
		l.problem("%s:%d: %s", path, line, undecodable(wrong))
		l.broken = true
	} else if err != nil {
		l.problem("%s: %s", path, unplaced(data, err))
		l.broken = true
	}
	directory, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("find the directory of the agent's configuration: %w", err)
	}
	l.absolute(directory)
	return nil
}

// unknownKey says what to do about a key that is not in the table.
func unknownKey(name string) string {
	leaf := name[strings.LastIndex(name, ".")+1:]
	if strings.HasPrefix(name, "git.hosts.") {
		return unknownHostKey(name, leaf)
	}
	if strings.HasPrefix(name, "credentials.") {
		return unknownCredentialKey(name, leaf)
	}
	if strings.HasPrefix(name, "pools.") {
		return unknownPoolKey(name, leaf)
	}
	if slices.Contains([]string{"token", "api_token"}, leaf) {
		return fmt.Sprintf("%s: a token does not belong in this file; put it in a file of its own, "+
			"named by queue.token_file, or in the environment as %s", name, tokenEnv)
	}
	known := []string{"queue", "health", "policy", "git", "engine", "state", "run"}
	var siblings []string
	table := strings.TrimSuffix(name, leaf)
	for _, k := range keys() {
		known = append(known, k.name)
		last := k.name[strings.LastIndex(k.name, ".")+1:]
		if last == leaf { // the right key in the wrong table
			return fmt.Sprintf("%s: unknown key; did you mean %q?", name, k.name)
		}
		if k.name == table+last {
			siblings = append(siblings, k.name)
		}
	}
	hint := provision.DidYouMean(name, known)
	if hint == "" {
		hint = provision.DidYouMean(name, siblings)
	}
	return name + ": unknown key" + hint
}

// unplaced words an error that has no position: the library gives none when a
// number stands where a text is to be parsed, such as drain_timeout = 10.
func unplaced(data []byte, err error) string {
	var tables map[string]any
	if toml.Unmarshal(data, &tables) != nil {
		return err.Error()
	}
	for _, k := range keys() {
		if _, ok := k.field(new(Config)).(encoding.TextUnmarshaler); !ok {
			continue
		}
		value := any(tables)
		for part := range strings.SplitSeq(k.name, ".") {
			table, _ := value.(map[string]any)
			value = table[part]
		}
		switch value.(type) {
		case int64, float64, bool:
			return fmt.Sprintf("%s = %v: must be %s, in quotes", k.name, value, k.allowed)
		}
	}
	return err.Error()
}

// undecodable words a type error by what the key allows; the library would
// speak of Go types.
func undecodable(wrong *toml.DecodeError) string {
	name := strings.Join(wrong.Key(), ".")
	for _, k := range keys() {
		if name == k.name || strings.HasPrefix(name, k.name+".") {
			return fmt.Sprintf("%s: must be %s", name, k.allowed)
		}
	}
	text := strings.TrimPrefix(wrong.Error(), "toml: ")
	if name != "" {
		text = name + ": " + text
	}
	return text
}

// serviceLink matches what Kubernetes puts into the environment of a pod for
// each Service beside it, one called tendril-… included.
var serviceLink = lazyregexp.New(`_SERVICE_HOST$|_SERVICE_PORT(_.+)?$|_PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?$`).MatchString

func (l *loader) readEnv() {
	known := []string{tokenEnv, joinTokenEnv, fileEnv}
	for _, k := range keys() {
		known = append(known, k.env())
		text, ok := l.env[k.env()]
		if !ok {
			continue
		}
		l.fromEnv[k.name] = k.env()
		if err := k.set(&l.config, text); err != nil {
			l.problem("%s: must be %s", l.describe(k, text), k.allowed)
			k.reset(&l.config, l.env) // one complaint is enough
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l.env)) {
		if strings.HasPrefix(name, "TENDRIL_") && !strings.HasPrefix(name, "TENDRIL_TEST_") &&
			!slices.Contains(known, name) && !serviceLink(name) {
			l.problem("%s: unknown environment variable%s", name, provision.DidYouMean(name, known))
		}
	}
}

// absolute makes the relative paths start at directory, "" being the current
// one.
func (l *loader) absolute(directory string) {
	for _, k := range keys() {
		field, ok := k.field(&l.config).(*string)
		if !ok || !k.path {
			continue
		}
		*field = below(directory, *field)
	}
	l.config.Git.Hosts.absolute(directory)
	l.config.Credentials.absolute(directory)
	l.config.Pools.absolute(directory)
}

// below makes a relative path start at directory, "" being the current one.
func below(directory, path string) string {
	if path == "" || filepath.IsAbs(path) || strings.HasPrefix(path, "~") {
		return path
	}
	if directory != "" {
		return filepath.Join(directory, path)
	}
	if absolute, err := filepath.Abs(path); err == nil {
		return absolute
	}
	return path
}
