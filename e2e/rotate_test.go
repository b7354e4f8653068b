package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/testkit/secrettest"
)

// In the middle of an apply the database's password is changed, so that the agent
// is not let in any more, then its Secret; and then the cluster's token and the
// identity. The agent is not started anew, and nothing is lost.
func TestSecretsChangedMeanwhile(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	config, err := pgx.ParseConfig(s.QueueURL)
	if err != nil {
		t.Fatal(err)
	}
	old, fresh := generated(t), generated(t)
	files := func(password, token string, identities ...seal.Identities) map[string]string {
		var identity strings.Builder
		for _, one := range identities {
			identity.WriteString(one[0].String() + "\n")
		}
		url := strings.Replace(s.QueueURL, ":"+config.Password+"@", ":"+password+"@", 1)
		return map[string]string{"url": url + "\n", "listen": url + "\n", "token": token + "\n", "identity": identity.String()}
	}
	secret := secrettest.Mount(t, files(config.Password, s.Token, old))
	a := s.NewAgent("one", 1, "")
	a.Env = slices.DeleteFunc(a.Env, func(entry string) bool {
		return strings.HasPrefix(entry, "TENDRIL_QUEUE_URL=") || strings.HasPrefix(entry, "TENDRIL_API_TOKEN=")
	})
	a.Set("TENDRIL_QUEUE_URL_FILE", secret.Path("url"))
	a.Set("TENDRIL_QUEUE_LISTEN_URL_FILE", secret.Path("listen"))
	a.Set("TENDRIL_QUEUE_TOKEN_FILE", secret.Path("token"))
	a.Set("TENDRIL_IDENTITY_FILE", secret.Path("identity"))
	a.Start()
	gate := site.Meeting(t)
	id := s.DeployTemplate(s.Template("slow", map[string]string{"main.tf": slowApply(gate)}), "a", nil)
	s.AwaitLine(id, "applying")

	s.Exec(t, "ALTER ROLE "+config.User+" PASSWORD 's3cret-new'")
	s.Exec(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", config.User)
	a.AwaitOutput("28P01")
	release(t, gate)
	a.AwaitSpool("released")
	secret.Replace(t, files("s3cret-new", s.Token, old))
	if got := s.AwaitEnd(id); got != "SUCCESS" {
		t.Fatalf("the run = %s (%s), want SUCCESS", got, s.Message(id))
	}
	if log := s.Log(t, id); !strings.Contains(log, "released") || !strings.HasSuffix(log, "Done.\n") {
		t.Errorf("the log lacks what was printed while nobody was let in:\n%s", log)
	}
	s.Await("a session that listens", "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE usename = $1 AND query LIKE 'LISTEN %')", config.User)

	token := s.Text(t, "SELECT token FROM public.rotate_cluster_token($1, '0 seconds')", s.Cluster)
	a.AwaitOutput("the agent token is unknown, revoked or expired")
	secret.Replace(t, files("s3cret-new", token, fresh, old))
	a.AwaitOutput("the identities have changed in their file")
	repo := s.Template("sealed", map[string]string{"main.tf": `variable "v" { sensitive = true }`})
	for workspace, key := range map[string]seal.Identities{"b": old, "c": fresh} {
		id := deploySealed(s, key, repo, workspace, nil, map[string]any{"v": "hidden-value"})
		if got := s.AwaitEnd(id); got != "SUCCESS" {
			t.Errorf("the run of what is sealed to %s = %s (%s), want SUCCESS", seal.Fingerprint(key.Public()), got, s.Message(id))
		}
	}
	a.AwaitNoSpools()
	if log := a.Out.String(); strings.Count(log, "msg=registered") != 1 || strings.Contains(log, "s3cret") || strings.Contains(log, "tnd_") || strings.Contains(log, "AGE-SECRET") {
		t.Errorf("the agent has begun anew, or shows a secret:\n%s", log)
	}
}

func generated(t *testing.T) seal.Identities {
	t.Helper()
	made, err := seal.Generate()
	if err != nil {
		t.Fatal(err)
	}
	return made
}
