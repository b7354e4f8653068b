package kubejobs

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tendril-run/tendril/internal/agent"
	"github.com/tendril-run/tendril/internal/provision"
)

// remote is the Job of one run: an agent.Remote.
type remote struct {
	launcher *Launcher
	run      agent.RemoteRun
	job      *batchv1.Job
	seen     bool // by the watch, which may be behind
}

var _ agent.Remote = (*remote)(nil)

// Run implements agent.Remote.
func (r *remote) Run() agent.RemoteRun { return r.run }

const (
	// firstLine is the longest first line, in bytes, and lineTimeout how long it is waited for at a
	// time.
	firstLine   = 4 << 10
	lineTimeout = 20 * time.Second
	// tellAfter is how long a pod may take until people are told why, and how often that is looked
	// for.
	tellAfter = 5 * time.Second
	silent    = "Kubernetes does not say why"
	// errorPrefix begins the last line of a program of ours that fails.
	errorPrefix = "Error: "
	// lastLines are read for the runner's notes, and lastBytes of them.
	lastLines = 100
	lastBytes = 64 << 10
	// unseen is how long beyond its grace a pod may take to end until it counts as unseen.
	unseen = 2 * time.Minute
)

// notStarted is why there will be no first line.
func (r *remote) notStarted(why string) error {
	return provision.Fail(provision.CodeRunnerNotStarted, fmt.Sprintf("Kubernetes did not start the run's pod (Job %s in namespace %s): %s. Nothing was changed.",
		r.job.Name, r.job.Namespace, strings.TrimSuffix(why, ".")), nil)
}

// Hello implements agent.Remote. The line comes from the log of the Job's own pod, by its UID.
func (r *remote) Hello(ctx context.Context, waits func(string)) (string, error) {
	l := r.launcher
	looks := time.NewTicker(tellAfter)
	defer looks.Stop()
	told := ""
	timeout := time.NewTimer(l.options.StartTimeout)
	defer timeout.Stop()
	for {
		changed := l.next()
		pod := l.podOf(r.job)
		if pod != nil && begun(pod) {
			line, err := r.firstLine(ctx, pod)
			if err == nil || ctx.Err() != nil {
				return line, err
			}
			if why, over := r.over(pod); over {
				return "", r.notStarted(why)
			}
			l.options.Log.Warn("the first line of a runner cannot be read; trying again", "pod", pod.Name, "error", err)
			changed = after(changed, patience)
		} else if why, over := r.over(pod); over {
			return "", r.notStarted(why)
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-changed:
		case <-looks.C:
			if why := r.waitsFor(ctx, pod); why != told && why != silent {
				told = why
				waits(fmt.Sprintf("Kubernetes says of its pod: %s", why))
			}
		case <-timeout.C:
			return "", r.notStarted(fmt.Sprintf("it did not begin within %s: %s", l.options.StartTimeout, r.waitsFor(ctx, pod)))
		}
	}
}

// after is closed, or has a value, with the channel or when the time is over.
func after(c <-chan struct{}, d time.Duration) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-c:
		case <-timer.C:
		}
	}()
	return done
}

// state is that of the runner's container; nil: Kubernetes has said nothing of it.
func state(pod *corev1.Pod) *corev1.ContainerState {
	for i := range pod.Status.ContainerStatuses {
		if s := &pod.Status.ContainerStatuses[i]; s.Name == container {
			return &s.State
		}
	}
	return nil
}

func begun(pod *corev1.Pod) bool {
	s := state(pod)
	return s != nil && (s.Running != nil || s.Terminated != nil)
}

func (r *remote) firstLine(ctx context.Context, pod *corev1.Pod) (string, error) {
	l := r.launcher
	ctx, cancel := context.WithTimeout(ctx, lineTimeout)
	defer cancel()
	limit := int64(firstLine)
	log, err := l.client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: container, Follow: true, LimitBytes: &limit}).Stream(ctx)
	if err != nil {
		return "", err
	}
	defer log.Close() //nolint:errcheck // only read
	line, err := bufio.NewReader(log).ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("the log of pod %s ends before a line does: %w", pod.Name, err)
	}
	// The log was asked for by name: is it still that pod's?
	now, err := l.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if now.UID != pod.UID {
		return "", fmt.Errorf("pod %s is another one now", pod.Name)
	}
	return strings.TrimSuffix(line, "\n"), nil
}

// over says why a Job and its pod will do nothing more.
func (r *remote) over(pod *corev1.Pod) (why string, over bool) {
	if pod != nil && terminated(pod) {
		return ending(pod), true
	}
	job := r.launcher.jobNow(r.job)
	if job == nil {
		return "its Job was deleted", r.seen && pod == nil
	}
	r.seen = true
	for _, c := range job.Status.Conditions {
		if c.Type == batchv1.JobFailed && c.Status == corev1.ConditionTrue {
			return fmt.Sprintf("its Job has failed (%s: %s)", c.Reason, strings.TrimSuffix(c.Message, ".")), pod == nil
		}
	}
	return "", false
}

// terminated reports whether Kubernetes has seen the end of all processes of the pod.
func terminated(pod *corev1.Pod) bool {
	s := state(pod)
	return s != nil && s.Terminated != nil && s.Terminated.Reason != "ContainerStatusUnknown" ||
		(pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded) && (s == nil || s.Running == nil && s.Terminated == nil)
}

// ending is how a pod ended, in Kubernetes' own words.
func ending(pod *corev1.Pod) string {
	why := "its pod ended"
	if s := state(pod); s != nil && s.Terminated != nil {
		t := s.Terminated
		switch {
		case t.Reason == "OOMKilled":
			why = "its container used more memory than its limit and was killed (OOMKilled)"
		case t.Signal != 0:
			why = fmt.Sprintf("its container was ended by signal %d (%s)", t.Signal, t.Reason)
		default:
			why = fmt.Sprintf("its container ended with exit status %d (%s)", t.ExitCode, t.Reason)
		}
		if t.Message != "" {
			why += ": " + strings.TrimSpace(t.Message)
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			why += fmt.Sprintf("; Kubernetes ended the pod (%s: %s)", c.Reason, strings.TrimSuffix(c.Message, "."))
		}
	}
	if pod.Status.Reason != "" {
		why += fmt.Sprintf("; %s: %s", pod.Status.Reason, strings.TrimSuffix(pod.Status.Message, "."))
	}
	return why
}

// waitsFor says in Kubernetes' words why a pod has not begun.
func (r *remote) waitsFor(ctx context.Context, pod *corev1.Pod) string {
	if pod != nil {
		if s := state(pod); s != nil && s.Waiting != nil && s.Waiting.Reason != "ContainerCreating" {
			return strings.TrimSuffix(s.Waiting.Reason+": "+s.Waiting.Message, ": ")
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
				return c.Reason + ": " + c.Message
			}
		}
	}
	involved, uid := "Job", r.job.UID
	if pod != nil {
		involved, uid = "Pod", pod.UID
	}
	events, err := r.launcher.client.CoreV1().Events(r.job.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=" + involved + ",involvedObject.uid=" + string(uid)})
	if err != nil {
		return "Kubernetes does not say why (" + err.Error() + ")"
	}
	for i := len(events.Items) - 1; i >= 0; i-- {
		if e := events.Items[i]; e.Type == corev1.EventTypeWarning {
			return e.Reason + ": " + e.Message
		}
	}
	return silent
}

// Hand implements agent.Remote.
func (r *remote) Hand(ctx context.Context, sealed []byte) error {
	l, yes := r.launcher, true
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: r.job.Name, Namespace: r.job.Namespace, Labels: r.job.Labels,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: r.job.Name, UID: r.job.UID, Controller: &yes}},
		},
		Type: corev1.SecretTypeOpaque, Immutable: &yes, Data: map[string][]byte{orderKey: sealed},
	}
	err := persist(ctx, func(ctx context.Context) error {
		_, err := l.client.CoreV1().Secrets(r.job.Namespace).Create(ctx, secret, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // an answer was lost, or somebody was faster
			var there *corev1.Secret
			there, err = l.client.CoreV1().Secrets(r.job.Namespace).Get(ctx, r.job.Name, metav1.GetOptions{})
			if err == nil && !bytes.Equal(there.Data[orderKey], sealed) {
				err = provision.Fail(provision.CodeRunnerNotStarted, fmt.Sprintf("Somebody has made the Secret %s in namespace %s before the agent could give the run its order there. Nothing was changed.", r.job.Name, r.job.Namespace), nil)
			}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("leave the order in Secret %s: %w", r.job.Name, err)
	}
	// A changed pod has its kubelet renew its volumes at once, not within a minute.
	if pod := l.podOf(r.job); pod != nil {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, handedAnnotation, time.Now().UTC().Format(time.RFC3339))
		if _, err := l.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
			l.options.Log.Warn("the pod could not be told of its order; its kubelet finds it within a minute or two", "pod", pod.Name, "error", err)
		}
	}
	return nil
}

// Ended implements agent.Remote.
func (r *remote) Ended(ctx context.Context) (agent.RemoteEnd, error) {
	l := r.launcher
	var last *corev1.Pod
	for {
		changed := l.next()
		pod := l.podOf(r.job)
		if pod != nil {
			last = pod
		}
		switch {
		case pod != nil && terminated(pod):
			return r.end(ctx, pod), nil
		case pod != nil && (pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded):
			return agent.RemoteEnd{Unknown: true, Why: fmt.Sprintf("pod %s is over, and nobody has seen the end of its container: %s", pod.Name, ending(pod))}, nil
		case pod == nil && last != nil:
			return agent.RemoteEnd{Unknown: true, Why: fmt.Sprintf("pod %s was removed from Kubernetes before its end was seen", last.Name)}, nil
		case pod == nil:
			if why, over := r.over(nil); over {
				return agent.RemoteEnd{Unknown: true, Why: why + ", and its pod is gone"}, nil
			}
		case pod.DeletionTimestamp != nil:
			left := time.Until(pod.DeletionTimestamp.Add(unseen))
			if left <= 0 {
				return agent.RemoteEnd{Unknown: true, Why: fmt.Sprintf("pod %s was told to end, and node %s does not say that it has", pod.Name, pod.Spec.NodeName)}, nil
			}
			changed = after(changed, left)
		}
		select {
		case <-ctx.Done():
			return agent.RemoteEnd{}, ctx.Err()
		case <-changed:
		}
	}
}

// end reads a pod's last lines.
func (r *remote) end(ctx context.Context, pod *corev1.Pod) agent.RemoteEnd {
	var e agent.RemoteEnd
	if s := state(pod); s != nil && s.Terminated != nil && s.Terminated.ExitCode == 0 {
		e.Well = true
	} else {
		e.Why = fmt.Sprintf("The run's pod %s: %s.", pod.Name, ending(pod))
	}
	lines, bytes := int64(lastLines), int64(lastBytes)
	log, err := r.launcher.client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: container, TailLines: &lines, LimitBytes: &bytes}).Stream(ctx)
	if err != nil {
		return e
	}
	defer log.Close() //nolint:errcheck // only read
	text, err := io.ReadAll(log)
	if err != nil {
		return e
	}
	for line := range strings.Lines(string(text)) {
		if notes, ok := strings.CutPrefix(strings.TrimSpace(line), agent.NotesPrefix); ok {
			e.Notes = notes
		} else if why, ok := strings.CutPrefix(strings.TrimSpace(line), errorPrefix); ok && !e.Well {
			e.Why += " Its last words: " + strings.TrimSuffix(why, ".") + "."
		}
	}
	return e
}

// Remove implements agent.Remote.
func (r *remote) Remove(ctx context.Context) error {
	uid, background := r.job.UID, metav1.DeletePropagationBackground
	err := persist(ctx, func(ctx context.Context) error {
		return r.launcher.client.BatchV1().Jobs(r.job.Namespace).Delete(ctx, r.job.Name, metav1.DeleteOptions{PropagationPolicy: &background, Preconditions: &metav1.Preconditions{UID: &uid}})
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete Job %s: %w", r.job.Name, err)
	}
	return nil
}
