package bench

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
	"github.com/tendril-run/tendril/internal/testkit/otlptest"
)

// one is a template of one resource, of the engine's built-in provider: next to
// nothing is left but what each run costs.
const one = `variable "n" { type = number }
resource "terraform_data" "it" { input = var.n }
output "n" { value = terraform_data.it.output }
`

// bareCommands are what a person would type. CHECKPOINT_DISABLE is what Tendril
// sets as well.
const bareCommands = `terraform init -input=false -no-color &&
terraform plan -input=false -no-color -out=plan &&
terraform show -json plan > shown &&
terraform apply -input=false -json plan`

// bareRun runs the commands in a directory of its own, with the state of its
// last run.
type bareRun struct {
	b   *testing.B
	dir string
}

func newBareRun(b *testing.B) *bareRun {
	b.Helper()
	dir := b.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.tf"), []byte(one), 0o600); err != nil {
		b.Fatal(err)
	}
	return &bareRun{b, dir}
}

func (r *bareRun) run(n int) time.Duration {
	r.b.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, "terraform.tfvars"), []byte("n = "+strconv.Itoa(n)), 0o600); err != nil {
		r.b.Fatal(err)
	}
	began := time.Now()
	cmd := exec.CommandContext(r.b.Context(), "sh", "-c", bareCommands)
	cmd.Dir = r.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + r.dir, "CHECKPOINT_DISABLE=1", "TF_IN_AUTOMATION=1"}
	if out, err := cmd.CombinedOutput(); err != nil {
		r.b.Fatalf("%v\n%s", err, out)
	}
	return time.Since(began)
}

// deploy inserts a row and waits until its SUCCESS is seen.
func deploy(s *site.Site, ends *listener, repo, workspace string, n int) time.Duration {
	began := time.Now()
	id := s.DeployTemplate(repo, workspace, map[string]any{"n": n})
	return ends.ended("SUCCESS", id).Sub(began)
}

// BenchmarkDeploy is the time from when a row is about to be inserted until a
// listener sees its SUCCESS. Bare is the same Terraform commands, no more: no
// checkout, no log kept.
//
// warm deploys another value to the same workspace; cold is the first deploy of
// an agent that has been installed just now. The traced ones have the agent record
// a trace of each run, and tell of its parts; they are compared with those that do not.
func BenchmarkDeploy(b *testing.B) {
	b.Run("warm", func(b *testing.B) { warmDeploys(b, false) })
	b.Run("warm/traced", func(b *testing.B) { warmDeploys(b, true) })
	b.Run("cold", func(b *testing.B) { coldDeploys(b, false) })
	b.Run("cold/traced", func(b *testing.B) { coldDeploys(b, true) })
}

// deployer is an agent of a site of its own.
type deployer struct {
	*site.Site
	agent     *site.Agent
	repo      string
	ends      *listener
	collector *otlptest.Collector // nil: nothing is traced
}

func newDeployer(b *testing.B, collector *otlptest.Collector) *deployer {
	b.Helper()
	s := site.New(b)
	agent := s.NewAgent("one", 2, "")
	if collector != nil {
		agent.Env = append(agent.Env, collector.Environment()...)
	}
	agent.Start().AwaitOutput("registered")
	return &deployer{s, agent, s.Template("one", map[string]string{"main.tf": one}), listen(b, s.URL, "tendril_provision"), collector}
}

func warmDeploys(b *testing.B, traced bool) {
	const deploys = 20
	plain, bare := newDeployer(b, nil), newBareRun(b)
	var with *deployer
	if traced {
		with = newDeployer(b, otlptest.New(b))
		deploy(with.Site, with.ends, with.repo, "one", 0)
	}
	n := 0
	bare.run(n)
	deploy(plain.Site, plain.ends, plain.repo, "one", n)
	var ours, limit series
	for b.Loop() {
		for range deploys {
			n++
			switch {
			case traced:
				limit.add(deploy(plain.Site, plain.ends, plain.repo, "one", n))
				ours.add(deploy(with.Site, with.ends, with.repo, "one", n))
			default:
				limit.add(bare.run(n))
				ours.add(deploy(plain.Site, plain.ends, plain.repo, "one", n))
			}
		}
	}
	reportDeploys(b, ours, limit)
	if traced {
		reportParts(b, with.collector, 1, len(ours))
	}
}

func coldDeploys(b *testing.B, traced bool) {
	const deploys = 5
	var ours, limit series
	collector := otlptest.New(b)
	cold := func(collector *otlptest.Collector) time.Duration {
		d := newDeployer(b, collector)
		defer d.agent.Terminate()
		return deploy(d.Site, d.ends, d.repo, "one", 1)
	}
	for b.Loop() {
		for range deploys {
			if traced {
				limit.add(cold(nil))
				ours.add(cold(collector))
			} else {
				limit.add(newBareRun(b).run(1))
				ours.add(cold(nil))
			}
		}
	}
	reportDeploys(b, ours, limit)
	if traced {
		reportParts(b, collector, 0, len(ours))
	}
}

// reportParts reports how long runs were at each of their parts, the first ones left out: the
// median of what each run spent there.
func reportParts(b *testing.B, collector *otlptest.Collector, out, runs int) {
	b.Helper()
	all := collector.Await(b, "run", out+runs)
	run := map[string]string{} // the one that a span is of, by its id
	var ids []string
	for _, s := range all {
		if s.Name == "run" {
			run[s.ID] = s.ID
			ids = append(ids, s.ID)
		}
	}
	spent := map[string]map[string]time.Duration{} // by name and run
	for known := 0; known != len(run); {           // a child may come before its parent
		known = len(run)
		for _, s := range all {
			if of := run[s.Parent]; of != "" && run[s.ID] == "" {
				run[s.ID] = of
				if spent[s.Name] == nil {
					spent[s.Name] = map[string]time.Duration{}
				}
				spent[s.Name][of] += s.Took()
			}
		}
	}
	for name, by := range spent {
		var times series
		for _, id := range ids[out:] {
			times.add(by[id])
		}
		times.report(b, strings.ReplaceAll(name, " ", "-")+"-", 50)
	}
}

// scripted is a template whose script makes one machine, and does nothing for it. commands is
// what its block has more.
func scripted(commands string) gittest.Files {
	return gittest.Files{
		"variables.tf": gittest.File("variable \"n\" { type = number }\n"),
		"tendril.hcl": gittest.File(`provisioner "script" {
  speak     = "once"
  provision = ["./machine.sh"]
  terminate = ["./machine.sh"]
` + commands + `  machine { name = "m${var.n}" }
}
`),
		"machine.sh": gittest.Executable(scriptOfOne),
	}
}

const scriptOfOne = `#!/bin/sh
read -r request
echo '{"success": true, "instance": {"external_id": "vm-1"}}'
`

// BenchmarkScript is the same for a template that a script carries out: each deploy makes
// one machine and destroys the one before. Bare is the script, run twice. commands has one
// more before the machine is made and one after it, and so has bare.
func BenchmarkScript(b *testing.B) {
	b.Run("alone", func(b *testing.B) { benchmarkScript(b, "", 0) })
	b.Run("commands", func(b *testing.B) {
		benchmarkScript(b, "  pre_provision_commands  = [\"true\"]\n  post_provision_commands = [\"true\"]\n", 2)
	})
}

func benchmarkScript(b *testing.B, block string, commands int) {
	const deploys = 20
	s := site.New(b)
	agent := s.NewAgent("one", 2, "")
	agent.ManageState(s.IdentityFile())
	agent.Start().AwaitOutput("registered")
	repo, _ := s.Git.Repo("scripted", scripted(block), "v1")
	ends := listen(b, s.URL, "tendril_provision")
	script := filepath.Join(b.TempDir(), "machine.sh")
	if err := os.WriteFile(script, []byte(scriptOfOne), 0o700); err != nil {
		b.Fatal(err)
	}
	bare := func() time.Duration {
		began := time.Now()
		for range 2 {
			cmd := exec.CommandContext(b.Context(), script)
			cmd.Stdin = strings.NewReader(`{"action":"provision"}` + "\n")
			if out, err := cmd.CombinedOutput(); err != nil {
				b.Fatalf("%v\n%s", err, out)
			}
		}
		for range commands {
			if out, err := exec.CommandContext(b.Context(), "/bin/sh", "-c", "true").CombinedOutput(); err != nil {
				b.Fatalf("%v\n%s", err, out)
			}
		}
		return time.Since(began)
	}
	n := 0
	deploy(s, ends, repo.URL, "one", n)
	var ours, limit series
	for b.Loop() {
		for range deploys {
			n++
			limit.add(bare())
			ours.add(deploy(s, ends, repo.URL, "one", n))
		}
	}
	reportDeploys(b, ours, limit)
}

func reportDeploys(b *testing.B, ours, bare series) {
	b.Helper()
	var over series
	for i := range ours {
		over.add(ours[i] - bare[i])
	}
	bare.report(b, "bare-", 50, 90)
	ours.report(b, "", 50, 90)
	b.ReportMetric(milliseconds(over.percentile(50)), "over-ms")
	only(b)
}

// BenchmarkFleet is 20 provisions, each on a workspace of its own, queued at
// once for an agent of five slots: new workspaces, or the same ones again. Bare
// is five shells at a time that run the same Terraform commands in 20
// directories, new or the same.
func BenchmarkFleet(b *testing.B) {
	b.Run("new", func(b *testing.B) { benchmarkFleet(b, false) })
	b.Run("again", func(b *testing.B) { benchmarkFleet(b, true) })
}

// A fleet is runs provisions, at most slots at a time.
const runs, slots = 20, 5

func benchmarkFleet(b *testing.B, again bool) {
	s := site.New(b)
	s.NewAgent("one", slots, "").Start().AwaitOutput("registered")
	repo := s.Template("one", map[string]string{"main.tf": one})
	name := func(n, i int) string {
		if again {
			n = 0
		}
		return fmt.Sprintf("w%d-%d", n, i)
	}
	ours := func(n int) time.Duration {
		began := time.Now()
		ids := make([]uuid.UUID, runs)
		for i := range ids {
			ids[i] = s.DeployTemplate(repo, name(n, i), map[string]any{"n": n})
		}
		return allEnded(s, "SUCCESS", ids).Sub(began)
	}
	var bare []*bareRun
	loops := func(n int) time.Duration {
		if bare == nil || !again {
			bare = make([]*bareRun, runs)
			for i := range bare {
				bare[i] = newBareRun(b)
			}
		}
		return shells(bare, n)
	}
	loops(0)
	ours(0)
	var with, without series
	n := 0
	for b.Loop() {
		for range 3 {
			n++
			without.add(loops(n))
			with.add(ours(n))
		}
	}
	perSecond := func(s series) float64 { return runs / s.percentile(50).Seconds() }
	b.ReportMetric(perSecond(without), "bare-runs-/s")
	b.ReportMetric(perSecond(with), "runs-/s")
	only(b)
}

// shells runs the commands in each directory, in as many shells as an agent has
// slots.
func shells(bare []*bareRun, n int) time.Duration {
	began := time.Now()
	next := make(chan *bareRun)
	var shells sync.WaitGroup
	for range slots {
		shells.Go(func() {
			for r := range next {
				r.run(n)
			}
		})
	}
	for _, r := range bare {
		next <- r
	}
	close(next)
	shells.Wait()
	return time.Since(began)
}
