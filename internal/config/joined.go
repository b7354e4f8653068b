package config

import (
	"cmp"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/agentkey"
	"github.com/tendril-run/tendril/internal/durable"
	"github.com/tendril-run/tendril/internal/secretfile"
)

// joinTokenPrefix begins every one-time join token.
const joinTokenPrefix = "tnj_"

// Joined is what an agent remembers of the cluster that its key has joined.
type Joined struct {
	URL         string    `json:"url"` // of the queue
	ClusterID   uuid.UUID `json:"cluster_id"`
	ClusterName string    `json:"cluster_name"`
}

func joinedFile(dataDir string) string { return filepath.Join(dataDir, "joined.json") }

// Remember writes it to the agent's data directory, where Load finds the URL if none is configured.
func (j Joined) Remember(dataDir string) error {
	text, err := json.Marshal(j)
	if err == nil {
		err = durable.WriteFile(joinedFile(dataDir), text)
	}
	if err != nil {
		return fmt.Errorf("remember the cluster that the agent has joined: %w", err)
	}
	return nil
}

// readJoined takes the queue's URL from where the agent has joined, if nothing else says it.
func (l *loader) readJoined() {
	q := &l.config.Queue
	if q.URL != "" || l.joins {
		return
	}
	text, err := os.ReadFile(joinedFile(l.config.DataDir))
	if err != nil {
		return // check complains of the URL
	}
	var joined Joined
	if err := json.Unmarshal(text, &joined); err != nil {
		l.problem("queue.url: missing, and %s cannot be read: %v", joinedFile(l.config.DataDir), err)
		q.URL = unreadURL
		return
	}
	q.URL, l.fromEnv["queue.url"] = joined.URL, joinedFile(l.config.DataDir)
}

// readKey takes the agent's own key, or what it joins with.
func (l *loader) readKey() {
	q := &l.config.Queue
	if !q.OverHTTP() {
		if l.joins {
			l.problem("queue.url: agents join by https:// of trellis serve, which verifies their signatures")
		} else {
			l.problem("queue.token_file: missing; name a file that holds the cluster's token, or set %s", tokenEnv)
		}
		return
	}
	key, err := agentkey.Load(l.config.DataDir)
	if err == nil {
		q.Key = &key
	} else if !errors.Is(err, fs.ErrNotExist) {
		l.problem("data_dir: %v", err)
		return
	}
	if q.JoinAccountTokenFile != "" && !l.joins {
		l.readAccountToken()
		return
	}
	if err == nil && !l.joins && l.hasJoined() {
		return
	}
	q.JoinToken = l.readJoinToken()
	if q.JoinToken.Reveal() == "" && !l.joins {
		l.problem("queue.token_file: missing, and this agent has not joined a cluster by key: run tendril join %s, name a file with a join token by queue.join_token_file, or set %s", cmp.Or(q.URL, "URL"), tokenEnv)
	}
}

// hasJoined reports whether the key was let in once. Whether it still counts, the database says.
func (l *loader) hasJoined() bool {
	_, err := os.Stat(joinedFile(l.config.DataDir))
	return err == nil
}

// readAccountToken reads it at each start, since the kubelet replaces it while it is valid.
func (l *loader) readAccountToken() {
	q := &l.config.Queue
	if q.JoinTokenFile != "" || l.env[joinTokenEnv] != "" {
		l.problem("queue.join_service_account_token_file and a join token are both set; keep one of them")
		return
	}
	text, err := secretfile.Read(q.JoinAccountTokenFile)
	text = strings.TrimSpace(text)
	if err == nil && strings.Count(text, ".") != 2 {
		err = errors.New("holds no token of a service account")
	}
	if err != nil {
		l.problem("queue.join_service_account_token_file = %q: %v", q.JoinAccountTokenFile, err)
		return
	}
	q.AccountToken = NewSecret(text)
}

func (l *loader) readJoinToken() Secret {
	text, source, file := l.env[joinTokenEnv], joinTokenEnv, l.config.Queue.JoinTokenFile
	if text == "" {
		if file == "" {
			return Secret{}
		}
		var err error
		if text, err = secretfile.Read(file); err != nil {
			l.problem("queue.join_token_file = %q: %v", file, err)
			return Secret{}
		}
		source = file
	}
	token, err := JoinTokenIn(text)
	if err != nil {
		l.problem("%s: %v", source, err)
	}
	return token
}

// JoinTokenIn is the one-time join token that a text has in it.
func JoinTokenIn(text string) (Secret, error) {
	token := strings.TrimSpace(text)
	if !strings.HasPrefix(token, joinTokenPrefix) || strings.ContainsAny(token, " \t\r\n") {
		return Secret{}, fmt.Errorf("does not hold a join token, which begins with %s and is one word", joinTokenPrefix)
	}
	return NewSecret(token), nil
}

// PrivateKey is what signs; nil where a token counts.
func (q Queue) PrivateKey() ed25519.PrivateKey {
	if q.Key == nil {
		return nil
	}
	return q.Key.Private()
}

// MustJoin reports whether the agent is yet to join, by a one-time token, or may have to, by that of
// its service account.
func (q Queue) MustJoin() bool { return q.JoinToken.Reveal() != "" || q.AccountToken.Reveal() != "" }
