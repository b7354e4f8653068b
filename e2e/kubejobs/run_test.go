//go:build kube

package kubejobs

import (
	"os"
	"strings"
	"testing"
)

// hello is a template with a state, an output and a line in the log.
const hello = `
variable "name" {}
resource "terraform_data" "it" { input = "hello ${var.name}" }
output "said" { value = terraform_data.it.output }
`

func deploy(t *testing.T, w *world) {
	t.Helper()
	repo := w.template("hello", map[string]string{"main.tf": hello})
	id := w.DeployTemplate(repo, "one", map[string]any{"name": "pod"})
	if got := w.AwaitEnd(id); got != "SUCCESS" {
		t.Fatalf("the run ended %s\n%s", got, w.Log(t, id))
	}
	if log := w.Log(t, id); !strings.Contains(log, "Apply complete") && !strings.Contains(log, "1 added") {
		t.Errorf("log = %s\nwant what Terraform said", log)
	}
	// The state is there for the next run, which another pod carries out.
	id = w.DeployTemplate(repo, "one", map[string]any{"name": "another"})
	if got := w.AwaitEnd(id); got != "SUCCESS" {
		t.Fatalf("the second run ended %s\n%s", got, w.Log(t, id))
	}
	if log := w.Log(t, id); !strings.Contains(log, "1 changed") {
		t.Errorf("log = %s\nwant one resource changed", log)
	}
}

// A run is a Job, whose pod carries it out and streams every line; nothing of it is left.
func TestRunIsAJob(t *testing.T) {
	w := newWorld(t)
	a := w.dispatcher("dispatcher", 2, "").Start()
	a.AwaitOutput("registered")
	deploy(t, w)
	w.awaitNothingLeft()
}

func (w *world) awaitNothingLeft() {
	w.T.Helper()
	w.await("Jobs and Secrets to be removed", func() bool { return len(w.names("jobs")) == 0 && len(w.names("secrets")) == 0 })
}

// slow is a template whose apply says that it has begun and then waits for a file of the meeting.
const slow = `
resource "terraform_data" "it" {
  triggers_replace = [var.seconds]
  provisioner "local-exec" { command = "echo begun; sleep ${var.seconds}; echo over" }
}
variable "seconds" {}
`

// A dispatcher that is killed, and one that takes its place, cost a run nothing: the runner goes on,
// delivers its lines by itself, and what was made for it is removed by the next.
func TestDispatcherIsKilled(t *testing.T) {
	w := newWorld(t)
	a := w.dispatcher("dispatcher", 2, "").Start()
	a.AwaitOutput("registered")
	id := w.DeployTemplate(w.template("slow", map[string]string{"main.tf": slow}), "one", map[string]any{"seconds": 8})
	w.AwaitLine(id, "begun")
	a.Kill()
	if got := w.AwaitEnd(id); got != "SUCCESS" { // without any agent
		t.Fatalf("the run ended %s\n%s", got, w.Log(t, id))
	}
	if len(w.names("jobs")) != 1 {
		t.Errorf("jobs = %q, want the run's, which nobody has removed yet", w.names("jobs"))
	}
	a.Start().AwaitOutput("registered")
	w.awaitNothingLeft()

	// And it is drained at once, while a run goes on.
	id = w.DeployTemplate(w.repos+"/slow", "one", map[string]any{"seconds": 5})
	w.AwaitLine(id, "begun")
	a.Terminate()
	if code, out := a.Exit(); code != 0 {
		t.Errorf("the dispatcher ended with %d, want 0\n%s", code, out)
	}
	if got := w.Status(t, id); got != "PROCESSING" {
		t.Errorf("status = %s, want the run to go on", got)
	}
	a.Start().AwaitOutput("registered")
	if got := w.AwaitEnd(id); got != "SUCCESS" {
		t.Fatalf("the run ended %s\n%s", got, w.Log(t, id))
	}
	w.awaitNothingLeft()
}

// A person's cancel reaches the runner, which tells the engine once.
func TestCancelReachesTheRunner(t *testing.T) {
	w := newWorld(t)
	w.dispatcher("dispatcher", 2, "").Start().AwaitOutput("registered")
	id := w.DeployTemplate(w.template("slow", map[string]string{"main.tf": slow}), "one", map[string]any{"seconds": 60})
	w.AwaitLine(id, "begun")
	w.Exec(t, "SELECT public.cancel_provision($1)", id)
	if got := w.AwaitEnd(id); got != "CANCELLED/cancelled" {
		t.Errorf("the run ended %s, want it cancelled\n%s", got, w.Log(t, id))
	}
	w.awaitNothingLeft()
}

// What Kubernetes does to a pod is told in its own words, and nothing is applied twice.
func TestBadDays(t *testing.T) {
	for name, day := range map[string]struct {
		// over is laid over pods in addition; seconds is how long the apply takes.
		over    string
		more    string
		objects string
		begins  bool   // the run's apply does
		drain   string // the drain time
		harm    func(w *world, pod string)
		want    string
		says    []string
	}{
		"ContainerKilled": {
			begins: true, want: "FAILED/exec_died", says: []string{"its container ended with exit status 137", "Where its last stage was apply"},
			harm: func(w *world, pod string) { node.killContainer(w.T, w.namespace, pod) },
		},
		"PodDeleted": { // as a drained node does, or the eviction of a pod
			begins: true, drain: "1s", want: "FAILED/agent_drained", says: []string{"drain time is over", "Apply was interrupted"},
			harm: func(w *world, pod string) {
				node.kubectl(w.T, "-n", w.namespace, "delete", "pod", pod, "--wait=false")
			},
		},
		"JobDeleted": {
			begins: true, drain: "1s", want: "FAILED/agent_drained", says: []string{"drain time is over", "Apply was interrupted"},
			harm: func(w *world, _ string) {
				node.kubectl(w.T, "-n", w.namespace, "delete", "jobs", "--all", "--wait=false")
			},
		},
		"NamespaceDeleted": {
			begins: true, drain: "1s", want: "FAILED/agent_drained", says: []string{"drain time is over", "Apply was interrupted"},
			harm: func(w *world, _ string) {
				node.kubectl(w.T, "delete", "namespace", w.namespace, "--wait=false")
			},
		},
		"ImageMissing": {
			over: "    image: tendril.test/missing:1\n", more: `start_timeout = "13s"`,
			want: "FAILED/runner_not_started", says: []string{"ErrImageNeverPull", "Nothing was changed"},
		},
		"NoNode": {
			over: "  nodeSelector: {tendril.test/there: \"no\"}\n", more: `start_timeout = "13s"`,
			want: "FAILED/runner_not_started", says: []string{"Unschedulable", "didn't match Pod's node affinity/selector"},
		},
		"QuotaFull": {
			objects: "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: full}\nspec: {hard: {pods: \"0\"}}\n", more: `start_timeout = "13s"`,
			want: "FAILED/runner_not_started", says: []string{"exceeded quota: full"},
		},
		"NotRestricted": {
			over: "    securityContext: {runAsNonRoot: false, runAsUser: 0}\n", more: `start_timeout = "13s"`,
			want: "FAILED/runner_not_started", says: []string{"violates PodSecurity", "restricted"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if day.over != "" {
				laid, err := os.ReadFile(w.pods)
				if err != nil {
					t.Fatal(err)
				}
				w.layOver(strings.TrimRight(string(laid), "\n") + "\n" + day.over)
			}
			if day.objects != "" {
				node.applyIn(t, w.namespace, day.objects)
			}
			a := w.dispatcher("dispatcher", 2, day.more)
			if day.drain != "" {
				a.Set("TENDRIL_DRAIN_TIMEOUT", day.drain)
				a.Set("TENDRIL_RUN_CANCEL_GRACE", "5s")
			}
			a.Start().AwaitOutput("registered")
			id := w.DeployTemplate(w.template("slow", map[string]string{"main.tf": slow}), "one", map[string]any{"seconds": 60})
			if day.begins {
				w.AwaitLine(id, "begun")
				day.harm(w, w.names("pods")[0])
			}
			if got := w.AwaitEnd(id); got != day.want {
				t.Errorf("the run ended %s, want %s\n%s", got, day.want, w.Log(t, id))
			}
			message := w.Text(t, "SELECT coalesce(error_message, '') FROM public.provisions WHERE id = $1", id)
			for _, want := range day.says {
				if !strings.Contains(message, want) {
					t.Errorf("message = %q, want %q in it", message, want)
				}
			}
			t.Logf("the person reads: %s", message)
			if log := w.Log(t, id); !day.begins && !strings.Contains(log, "The run has not started yet. Kubernetes says of its pod: ") {
				t.Errorf("log = %q, want it to say what the run waits for", log)
			}
			w.awaitNothingLeft()
		})
	}
}
