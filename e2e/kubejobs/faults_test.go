//go:build kube

package kubejobs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/seal"
)

// What of Kubernetes is away for a while costs a run nothing: its pod goes on.
func TestKubernetesIsAway(t *testing.T) {
	for _, server := range []string{"kubelet", "kube-apiserver", "containerd"} {
		t.Run(server, func(t *testing.T) {
			w := newWorld(t)
			w.dispatcher("dispatcher", 2, "").Start().AwaitOutput("registered")
			id := w.DeployTemplate(w.template("slow", map[string]string{"main.tf": slow}), "one", map[string]any{"seconds": 6})
			w.AwaitLine(id, "begun")
			pid := node.server(t, server)
			pause(t, pid, syscall.SIGSTOP)
			resume := func() { pause(t, pid, syscall.SIGCONT) }
			defer resume()
			if got := w.AwaitEnd(id); got != "SUCCESS" {
				t.Errorf("the run ended %s\n%s", got, w.Log(t, id))
			}
			resume()
			w.awaitNothingLeft()
		})
	}
}

func pause(t *testing.T, pid int, signal syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, signal); err != nil {
		t.Fatal(err)
	}
}

// Of two agents with one Lease one works. When it is killed the other takes its place, and follows
// its run.
func TestOneOfTwoWorks(t *testing.T) {
	w := newWorld(t)
	identity := filepath.Join(t.TempDir(), "identity")
	w.makeIdentity(identity)
	one := w.dispatcher("one", 2, `lease = "writers"`)
	one.Set("TENDRIL_IDENTITY_FILE", identity)
	one.Start().AwaitOutput("registered")
	two := w.dispatcher("two", 2, `lease = "writers"`)
	two.Set("TENDRIL_IDENTITY_FILE", identity)
	two.Set("TENDRIL_DATA_DIR", filepath.Join(filepath.Dir(one.Dir), "two"))
	two.Start().AwaitOutput("another agent holds the Lease")
	repo := w.template("slow", map[string]string{"main.tf": slow})
	id := w.DeployTemplate(repo, "a", map[string]any{"seconds": 20})
	w.AwaitLine(id, "begun")
	one.Kill()
	killed := time.Now()
	two.AwaitOutput("registered")
	if took := time.Since(killed); took > 15*time.Second {
		t.Errorf("the other agent took over after %s, want at most 15 s", took)
	}
	second := w.DeployTemplate(repo, "b", map[string]any{"seconds": 1})
	for _, id := range []string{w.AwaitEnd(id), w.AwaitEnd(second)} {
		if id != "SUCCESS" {
			t.Errorf("a run ended %s, want SUCCESS", id)
		}
	}
	w.awaitNothingLeft()
}

// makeIdentity makes one, which all agents of a cluster have.
func (w *world) makeIdentity(file string) {
	w.T.Helper()
	own, err := seal.Generate()
	if err != nil {
		w.T.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(own[0].String()+"\n"), 0o600); err != nil {
		w.T.Fatal(err)
	}
}

// viaHTTPS has the agent and its pods reach the queue through trellis serve, by a name that the
// certificate is for.
func (w *world) viaHTTPS(a *site.Agent) {
	w.T.Helper()
	hosts := filepath.Join(w.T.TempDir(), "hosts")
	if err := os.WriteFile(hosts, []byte("127.0.0.1 localhost\n"+host+" "+hostName+"\n"), 0o644); err != nil {
		w.T.Fatal(err)
	}
	a.Wrap = []string{"unshare", "-m", "sh", "-c", `mount --bind "$0" /etc/hosts && exec "$@"`, hosts}
	a.Set("TENDRIL_QUEUE_URL", "https://"+hostName+":"+forward(w.T, "tcp", w.Gateway.Address))
	a.Set("TENDRIL_QUEUE_CA_FILE", w.Git.CAFile)
}

// By HTTPS the runner signs with a key of its own, or shows a token of its own where the agent has one.
func TestRunnersByHTTPS(t *testing.T) {
	for name, byKey := range map[string]bool{"key": true, "token": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Serve()
			w.ByKey = byKey
			a := w.dispatcher("dispatcher", 2, "")
			w.viaHTTPS(a)
			a.Start().AwaitOutput("registered")
			deploy(t, w)
			w.awaitNothingLeft()
		})
	}
}

// A plan that awaits a person is approved when its pod is gone, and another pod applies that very
// plan, sealed by the first.
func TestApprovalBetweenTwoPods(t *testing.T) {
	w := newWorld(t)
	w.dispatcher("dispatcher", 2, "").Start().AwaitOutput("registered")
	repo := w.template("hello", map[string]string{"main.tf": hello})
	snapshot := strings.Replace(site.SnapshotOf(repo, "one", map[string]any{"name": "pod"}), "{", `{"approval": "always", `, 1)
	id := w.DeploySnapshot(t, snapshot)
	w.Await("the plan", "SELECT status = 'AWAITING_APPROVAL' FROM public.provisions WHERE id = $1", id)
	w.awaitNothingLeft()
	w.Exec(t, "SELECT public.approve_provision($1, plan_digest) FROM public.provisions WHERE id = $1", id)
	if got := w.AwaitEnd(id); got != "SUCCESS" {
		t.Fatalf("the run ended %s\n%s", got, w.Log(t, id))
	}
}

// Who may read all of the namespace, but its pods' memory, finds no secret: not in the Job, the pod,
// its environment, its log, events or the Secret.
func TestNamespaceShowsNoSecret(t *testing.T) {
	w := newWorld(t)
	a := w.dispatcher("dispatcher", 2, "")
	file := filepath.Join(t.TempDir(), "cloud.env")
	if err := os.WriteFile(file, []byte("AWS_SECRET_ACCESS_KEY=topsecretcloud\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a.Set("TENDRIL_CREDENTIALS", "*:env_file="+file)
	a.Start().AwaitOutput("registered")
	id := w.DeployTemplate(w.template("slow", map[string]string{"main.tf": slow}), "one", map[string]any{"seconds": 8})
	w.AwaitLine(id, "begun")
	all := node.kubectl(t, "-n", w.namespace, "get", "jobs,pods,secrets,events,configmaps", "-o", "yaml") +
		node.kubectl(t, "-n", w.namespace, "logs", w.names("pods")[0])
	data := node.kubectl(t, "-n", w.namespace, "get", "secrets", "-o", `go-template={{range .items}}{{range .data}}{{base64decode .}}{{end}}{{end}}`)
	if strings.Count(data, "age-encryption.org/v1") != 1 {
		t.Errorf("the Secret holds %.60q, want a sealed message", data)
	}
	password := regexp.MustCompile(`://[^:]+:([^@]+)@`).FindStringSubmatch(w.QueueURL)
	for what, secret := range map[string]string{
		"the cluster's token": w.Token, "a cloud's key": "topsecretcloud", "the queue's URL": w.QueueURL, "the database's password": ":" + password[1] + "@",
	} {
		if strings.Contains(all, secret) || strings.Contains(data, secret) {
			t.Errorf("the namespace shows %s", what)
		}
	}
	if got := w.AwaitEnd(id); got != "SUCCESS" {
		t.Errorf("the run ended %s", got)
	}
}

// What a hostile template finds in its pod: no account of Kubernetes, nothing of the queue, no order.
func TestHostileTemplateInAPod(t *testing.T) {
	w := newWorld(t)
	w.dispatcher("dispatcher", 2, "").Start().AwaitOutput("registered")
	const prowl = `
resource "terraform_data" "it" {
  provisioner "local-exec" {
    command = <<-EOT
      echo "account: $(cat /var/run/secrets/kubernetes.io/serviceaccount/token 2>&1)"
      echo "order: $(grep -ac age-encryption.org/v1 /run/tendril/order)"
      for pid in /proc/[0-9]*; do grep -qx tendril $pid/comm || continue; echo "one of them: $pid $(tr '\0' ' ' <$pid/environ 2>&1)"; (: <$pid/mem) 2>/dev/null && echo "memory of $pid is open"; done
      for file in $(find /var/lib/tendril /tmp /run /etc -type f 2>/dev/null); do echo "== $file"; head -c 20000 $file 2>/dev/null; done
      echo prowled
    EOT
  }
}
`
	id := w.DeployTemplate(w.template("prowl", map[string]string{"main.tf": prowl}), "one", nil)
	if got := w.AwaitEnd(id); got != "SUCCESS" {
		t.Fatalf("the run ended %s\n%s", got, w.Log(t, id))
	}
	log := w.Log(t, id)
	if !strings.Contains(log, "prowled") || !strings.Contains(log, "one of them: /proc/1") || !strings.Contains(log, "order: 1") {
		t.Fatalf("the template did not look around:\n%s", log)
	}
	for what, found := range map[string]string{"the cluster's token": w.Token, "the database's address": "@" + host, "a private key": "AGE-SECRET-KEY", "memory": "memory of /proc", "an account": "eyJ"} {
		if strings.Contains(log, found) {
			t.Errorf("the template finds %s", what)
		}
	}
	if !strings.Contains(log, "account: cat: can't open") {
		t.Errorf("the pod has an account of Kubernetes:\n%.2000s", log)
	}
}
