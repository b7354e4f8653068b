package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/rpcgateway"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/testkit/gatewaytest"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
	tendrilsql "github.com/tendril-run/tendril/sql"

	"github.com/tendril-run/tendril/e2e/site"
)

// An agent that was upgraded before its database works as one of the contract
// before, stays at work while the database is migrated, and knows all of it from
// its next start on. Over HTTPS, what is asked is a gateway of the time before.
func TestAgentNewerThanItsDatabase(t *testing.T) {
	t.Parallel()
	for _, transport := range []string{"direct", "https"} {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			w := queuetest.Populate(t, pgtest.New(t, queuetest.MigratedBefore).URL)
			s := site.On(t, w)
			repo := s.Template("hello", map[string]string{"main.tf": hello})
			a := s.NewAgent("one", 2, "")
			if transport == "https" {
				gateway := gatewaytest.Serve(t, w)
				a.Set("TENDRIL_QUEUE_URL", gateway.URL)
				a.Set("TENDRIL_QUEUE_CA_FILE", gateway.CAFile)
				a.Set("SUPABASE_ANON_KEY", gateway.APIKey)
			}
			deployed := func(workspace string, contract int) {
				t.Helper()
				wantWholeDeploy(t, s, s.DeployTemplate(repo, workspace, map[string]any{"name": "world"}), "terraform")
				if got := s.Text(t, "SELECT contract::text FROM public.agents"); got != fmt.Sprint(contract) {
					t.Errorf("the agent is registered with contract %s, want %d", got, contract)
				}
			}
			a.Start()
			deployed("before", queue.Contract-1)
			if !strings.Contains(a.Out.String(), "the database is one version older than this agent") {
				t.Errorf("the agent does not say that its database is older:\n%s", a.Out)
			}
			// A control plane of today has to know all that its pages ask.
			if _, err := rpcgateway.Prepare(t.Context(), w.URL, queue.Contract); err == nil || !strings.Contains(err.Error(), `run "trellis migrate" against it first`) {
				t.Errorf("trellis serve on the older database = %v, want it to ask for trellis migrate", err)
			}
			if _, err := tendrilsql.Migrate(t.Context(), w.URL); err != nil {
				t.Fatal(err)
			}
			deployed("after", queue.Contract-1)
			a.Terminate()
			a.Start()
			deployed("anew", queue.Contract)
		})
	}
}
