//go:build kube

package kubejobs

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// BenchmarkJob is what a run costs that is a Job: from its row to SUCCESS, next to the same run as a
// process of an agent of this machine, and next to a bare Job until its container has begun.
func BenchmarkJob(b *testing.B) {
	const rounds = 7
	w := newWorld(b)
	w.dispatcher("dispatcher", 1, "").Start().AwaitOutput("registered")
	repo := w.template("hello", map[string]string{"main.tf": hello})
	p := newWorld(b)
	process := p.NewAgent("process", 1, "[state]\ndefault = \"managed\"\n")
	process.Start().AwaitOutput("registered")
	local := p.Template("hello", map[string]string{"main.tf": hello})
	config, err := clientcmd.BuildConfigFromFlags("", node.kubeconfig)
	if err != nil {
		b.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(config)
	var job, bare, plain []time.Duration
	for b.Loop() {
		for n := range rounds {
			job = append(job, took(func() { w.succeed(b, w.DeployTemplate(repo, "one", map[string]any{"name": fmt.Sprint(n)})) }))
			plain = append(plain, took(func() { p.succeed(b, p.DeployTemplate(local, "one", map[string]any{"name": fmt.Sprint(n)})) }))
			bare = append(bare, took(func() { w.bareJob(b, client, n) }))
		}
	}
	middle := func(all []time.Duration) float64 {
		slices.Sort(all)
		return float64(all[len(all)/2].Microseconds()) / 1000
	}
	b.ReportMetric(middle(job), "job-ms")
	b.ReportMetric(middle(bare), "bare-pod-ms")
	b.ReportMetric(middle(plain), "process-ms")
	b.ReportMetric(middle(job)-middle(bare)-middle(plain), "over-ms")
	b.ReportMetric(0, "ns/op")
}

func took(do func()) time.Duration {
	began := time.Now()
	do()
	return time.Since(began)
}

func (w *world) succeed(b *testing.B, id uuid.UUID) {
	b.Helper()
	if got := w.AwaitEnd(id); got != "SUCCESS" {
		b.Fatalf("the run ended %s\n%s", got, w.Log(b, id))
	}
}

// bareJob is a Job of the runner's image, until its container has begun.
func (w *world) bareJob(b *testing.B, client kubernetes.Interface, n int) {
	b.Helper()
	no, yes, none, user := false, true, int32(0), int64(10001)
	name := fmt.Sprint("bare-", n)
	pods, err := client.CoreV1().Pods(w.namespace).Watch(b.Context(), metav1.ListOptions{LabelSelector: "job-name=" + name})
	if err != nil {
		b.Fatal(err)
	}
	defer pods.Stop()
	_, err = client.BatchV1().Jobs(w.namespace).Create(b.Context(), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: batchv1.JobSpec{BackoffLimit: &none, Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy:   corev1.RestartPolicyNever,
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: &yes, RunAsUser: &user, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{
				Name: "bare", Image: runnerImage, ImagePullPolicy: corev1.PullNever, Command: []string{"/bin/busybox", "true"},
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
			}},
		}}},
	}, metav1.CreateOptions{})
	if err != nil {
		b.Fatal(err)
	}
	for event := range pods.ResultChan() {
		if pod, ok := event.Object.(*corev1.Pod); ok && len(pod.Status.ContainerStatuses) > 0 {
			if state := pod.Status.ContainerStatuses[0].State; state.Running != nil || state.Terminated != nil {
				return
			}
		}
	}
	b.Fatal("the watch has ended")
}

// BenchmarkManyJobs is how fast an agent makes Jobs of what is queued, and what it takes of memory
// for fifty at once.
func BenchmarkManyJobs(b *testing.B) {
	const runs = 50
	w := newWorld(b)
	a := w.dispatcher("dispatcher", runs, `start_timeout = "5m"`)
	repo := w.template("slow", map[string]string{"main.tf": slow})
	for b.Loop() {
		ids := make([]uuid.UUID, runs)
		for n := range ids {
			ids[n] = w.DeployTemplate(repo, fmt.Sprint("w", n), map[string]any{"seconds": 20})
		}
		began := time.Now()
		a.Start().AwaitOutput("registered")
		w.await("all Jobs", func() bool { return len(w.names("jobs")) == runs })
		b.ReportMetric(runs/time.Since(began).Seconds(), "jobs-/s")
		for _, id := range ids {
			w.succeed(b, id)
		}
		b.ReportMetric(runs/time.Since(began).Seconds(), "runs-/s")
		b.ReportMetric(peak(b, a.Cmd.Process.Pid), "agent-peak-MB")
	}
	b.ReportMetric(0, "ns/op")
}

// peak is the most memory that a process has had, in MB.
func peak(b *testing.B, pid int) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			if err != nil {
				b.Fatal(err)
			}
			return kib * 1024 / 1e6
		}
	}
	b.Fatal("the process has no peak")
	return 0
}
