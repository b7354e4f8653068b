package kubejobs

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/tendril-run/tendril/internal/agent"
	"github.com/tendril-run/tendril/internal/provision"
)

const (
	container = "runner"
	orderKey  = "order"
	orderDir  = "/run/tendril"
	dataRoot  = "/var/lib/tendril"
	// keptFor is how long an ended Job stays that nobody removes: a dispatcher that was away finds it.
	keptFor = 24 * time.Hour
	// uid is whom the runner runs as unless the pods' template says otherwise: the image's user.
	uid = 10001
	// endMargin is what a pod gets to end beyond what its run may take: to deliver the rest.
	endMargin = 2 * time.Minute
	// outage is how long a database may be away until a pod whose run is over is ended.
	outage = 24 * time.Hour
)

// about is what an annotation says of a Job's run, for the next start of the agent.
type about struct {
	Claim       uuid.UUID           `json:"claim"`
	Provision   uuid.UUID           `json:"provision"`
	Workspace   uuid.UUID           `json:"workspace"`
	Number      int64               `json:"number"`
	Name        string              `json:"name"`
	Operation   provision.Operation `json:"operation"`
	Traceparent string              `json:"traceparent,omitempty"`
}

func aboutOf(job *batchv1.Job) (run agent.RemoteRun, err error) {
	var a about
	if err := json.Unmarshal([]byte(job.Annotations[aboutAnnotation]), &a); err != nil {
		return run, fmt.Errorf("annotation %s: %w", aboutAnnotation, err)
	}
	if a.Claim == uuid.Nil || a.Claim.String() != job.Labels[claimLabel] {
		return run, fmt.Errorf("annotation %s: its claim is not that of the label %s", aboutAnnotation, claimLabel)
	}
	return agent.RemoteRun{
		Claim: a.Claim, Provision: a.Provision, Workspace: a.Workspace, Number: a.Number, Name: a.Name, Operation: a.Operation, Traceparent: a.Traceparent,
	}, nil
}

// job is the Job of a run. Nothing in it is secret.
func (l *Launcher) job(run agent.RemoteRun) (*batchv1.Job, error) {
	o := l.options
	described, err := json.Marshal(about{
		Claim: run.Claim, Provision: run.Provision, Workspace: run.Workspace, Number: run.Number, Name: run.Name, Operation: run.Operation, Traceparent: run.Traceparent,
	})
	if err != nil {
		return nil, fmt.Errorf("describe the run: %w", err)
	}
	labels := map[string]string{
		"app.kubernetes.io/name": "tendril", "app.kubernetes.io/component": "runner", "app.kubernetes.io/managed-by": "tendril",
		agentLabel: o.Agent, claimLabel: run.Claim.String(), numberLabel: strconv.FormatInt(run.Number, 10), workspaceLabel: run.Workspace.String(),
	}
	pod, err := l.pod(run, labels)
	if err != nil {
		return nil, err
	}
	ptr := func(n int32) *int32 { return &n }
	failed := batchv1.PodFailurePolicyActionFailJob
	replaced := batchv1.Failed
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: name(run), Namespace: o.Namespace, Labels: labels, Annotations: map[string]string{aboutAnnotation: string(described)}},
		Spec: batchv1.JobSpec{
			// One pod and never a second: what the first has begun, a person checks.
			BackoffLimit: ptr(0), Completions: ptr(1), Parallelism: ptr(1), PodReplacementPolicy: &replaced,
			TTLSecondsAfterFinished: ptr(int32(keptFor.Seconds())),
			PodFailurePolicy: &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
				{Action: failed, OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}},
				{Action: failed, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpNotIn, Values: []int32{0}}},
			}},
			Template: pod,
		},
	}
	if run.Limit > 0 { // a last resort: the runner measures its time itself
		seconds := int64((o.StartTimeout + 2*run.Limit + o.Grace + outage).Seconds())
		job.Spec.ActiveDeadlineSeconds = &seconds
	}
	return job, nil
}

// pod is the template of a run's pod: one that the Pod Security Standard "restricted" takes, with
// what the operator lays over it.
func (l *Launcher) pod(run agent.RemoteRun, labels map[string]string) (corev1.PodTemplateSpec, error) {
	o := l.options
	no, yes, user, grace, mode := false, true, int64(uid), int64((o.Grace + endMargin).Seconds()), int32(0o440)
	pod := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, ServiceAccountName: o.ServiceAccount, AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
			TerminationGracePeriodSeconds: &grace,
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: &yes, RunAsUser: &user, RunAsGroup: &user, FSGroup: &user,
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: container, Image: o.Image,
				Args: []string{"runner", "--order", orderDir + "/" + orderKey, "--from", run.From, "--data-dir", dataRoot + "/run", "--wait", (o.StartTimeout + endMargin).String()},
				Env:  []corev1.EnvVar{{Name: "HOME", Value: "/tmp"}},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: &no, Privileged: &no, ReadOnlyRootFilesystem: &yes, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
				VolumeMounts: []corev1.VolumeMount{{Name: "order", MountPath: orderDir, ReadOnly: true}, {Name: "data", MountPath: dataRoot}, {Name: "tmp", MountPath: "/tmp"}},
			}},
			Volumes: []corev1.Volume{
				{Name: "order", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name(run), Optional: &yes, DefaultMode: &mode}}},
				{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			},
		},
	}
	laid := o.Pod(run.Name, run.Workspace)
	if laid == nil {
		return pod, nil
	}
	if laid.Spec.SecurityContext != nil { // all of it: OpenShift chooses users itself
		pod.Spec.SecurityContext = nil
	}
	over, err := json.Marshal(laid)
	if err != nil {
		return pod, fmt.Errorf("lay the template over the run's pod: %w", err)
	}
	under, err := json.Marshal(pod)
	if err != nil {
		return pod, fmt.Errorf("lay the template over the run's pod: %w", err)
	}
	merged, err := strategicpatch.StrategicMergePatch(under, over, corev1.PodTemplateSpec{})
	if err != nil {
		return pod, fmt.Errorf("lay the template over the run's pod: %w", err)
	}
	var whole corev1.PodTemplateSpec
	if err := json.Unmarshal(merged, &whole); err != nil {
		return pod, fmt.Errorf("lay the template over the run's pod: %w", err)
	}
	return whole, nil
}
