package bench

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
)

// checkPurpose is for what an agent authenticates checks.
const checkPurpose = "machine health check"

// BenchmarkRunWithChecks is the time of a run, from when its row is about to be inserted until
// its SUCCESS is seen, while its agent checks the health of machines as well: asked is 1,000 a
// minute over TCP, commands 100 a minute by a command of a template. Bare is the same run
// while nothing is due. Both take turns, two heartbeats long each.
func BenchmarkRunWithChecks(b *testing.B) {
	b.Run("asked", func(b *testing.B) {
		l := site.Accepting(b)
		benchmarkChecks(b, 1000, func(*site.Site) provision.HealthCheck {
			return provision.HealthCheck{Kind: "tcp", Target: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port} //nolint:forcetypeassert // it is one
		})
	})
	b.Run("commands", func(b *testing.B) {
		benchmarkChecks(b, 100, func(s *site.Site) provision.HealthCheck {
			files := gittest.Text(map[string]string{"variables.tf": "", "tendril.hcl": "health { command = [\"./health\"] }\n"})
			files["health"] = gittest.Executable("#!/bin/sh\nexit 0\n")
			repo, commit := s.Git.Repo("checked", files, "v1")
			return provision.HealthCheck{Kind: provision.CheckCommand, Command: &provision.CommandCheck{Repo: repo.URL, Version: "v1", Commit: commit, Workspace: "checked"}}
		})
	})
}

func benchmarkChecks(b *testing.B, machines int, checkOf func(*site.Site) provision.HealthCheck) {
	const turn, workspaces = 20 * time.Second, 10
	s := site.New(b)
	identity := s.IdentityFile()
	text, err := os.ReadFile(identity)
	if err != nil {
		b.Fatal(err)
	}
	key, err := seal.ParseIdentities(identity, string(text))
	if err != nil {
		b.Fatal(err)
	}
	check := checkOf(s)
	check.Interval, check.Timeout, check.HealthyAfter, check.UnhealthyAfter = 60, 10, 1, 3
	var owners [workspaces]uuid.UUID
	for i := range owners {
		owners[i] = uuid.New()
		s.Exec(b, "INSERT INTO public.workspaces (id, org_id, cluster_id, name) VALUES ($1, $2, $3, $4)", owners[i], s.Org, s.Cluster, fmt.Sprint("checked", i))
	}
	for i := range machines {
		name, owner := fmt.Sprint("m", i), owners[i%workspaces]
		check.MAC = key.Sign(checkPurpose, check.Message(owner, name))
		spec, err := json.Marshal(check)
		if err != nil {
			b.Fatal(err)
		}
		s.Exec(b, `WITH m AS (INSERT INTO public.machines (org_id, workspace_id, name, status) VALUES ($1, $2, $3, 'running') RETURNING id)
			INSERT INTO tendril.machine_checks (machine_id, workspace_id, cluster_id, spec, due_at) SELECT id, $2, $4, $5::jsonb, 'infinity' FROM m`,
			s.Org, owner, name, s.Cluster, string(spec))
	}
	agent := s.NewAgent("one", 2, "")
	agent.ManageState(identity)
	agent.Set("TENDRIL_POLICY_CHECK_RANGES", "127.0.0.0/8")
	agent.Start().AwaitOutput("registered")
	repo, _ := s.Git.Repo("scripted", scripted(""), "v1")
	ends, n := listen(b, s.URL, "tendril_provision"), 0
	deploy(s, ends, repo.URL, "one", n)
	runs := func(series *series) {
		for until := time.Now().Add(turn); time.Now().Before(until); {
			n++
			series.add(deploy(s, ends, repo.URL, "one", n))
		}
	}
	var ours, bare series
	done, spent := 0, time.Duration(0)
	for b.Loop() {
		for range 3 {
			s.Exec(b, "UPDATE tendril.machine_checks SET due_at = 'infinity'")
			runs(&bare)
			// As if they had been done all the time: a heartbeat finds those that came due since
			// the one before, which was 5 s ago on average.
			s.Exec(b, "UPDATE tendril.machine_checks SET streak = 0, due_at = now() + random() * interval '60 seconds' - interval '5 seconds'")
			began := time.Now()
			runs(&ours)
			spent += time.Since(began)
			did, err := strconv.Atoi(s.Text(b, "SELECT sum(streak)::text FROM tendril.machine_checks"))
			if err != nil {
				b.Fatal(err)
			}
			done += did
		}
	}
	b.ReportMetric(float64(done)/spent.Seconds(), "checks-/s")
	bare.report(b, "bare-", 50, 90)
	ours.report(b, "", 50, 90)
	only(b)
}
