package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tendril-run/tendril/internal/secretfile"
)

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
	if l.config.Engine.ProviderMirror != "" && slices.Contains(c.Run.PassEnv, engineConfig) {
		l.problem("engine.provider_mirror: run.pass_env names %s, which has mirrors of its own; keep one of them", engineConfig)
	}
	l.checkCredentials()
	if _, err := l.config.Requesters(); err != nil {
		l.problem("%v", err)
	}
}

// tokenPrefix begins every cluster token.
const tokenPrefix = "tnd_"

// readToken takes the token from the environment, else from its file.
func (l *loader) readToken() {
	text, source := l.env[tokenEnv], tokenEnv
	q := &l.config.Queue
	if text == "" {
		if q.TokenFile == "" {
			l.problem("queue.token_file: missing; name a file that holds the cluster's token, or set %s", tokenEnv)
			return
		}
		var err error
		if text, err = secretfile.Read(q.TokenFile); err != nil {
			l.problem("queue.token_file = %q: %v", q.TokenFile, err)
			return
		}
		source, q.from.token = q.TokenFile, q.TokenFile
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
