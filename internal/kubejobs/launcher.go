package kubejobs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/tendril-run/tendril/internal/agent"
	"github.com/tendril-run/tendril/internal/provision"
)

// Labels and annotations of a run's Job and pod.
const (
	agentLabel     = "tendril.run/agent"
	claimLabel     = "tendril.run/claim"
	numberLabel    = "tendril.run/run"
	workspaceLabel = "tendril.run/workspace-id"

	aboutAnnotation  = "tendril.run/about"
	handedAnnotation = "tendril.run/handed"
)

// Options say where Jobs are made and what is in them.
type Options struct {
	Config    *rest.Config
	Namespace string
	// Agent is whose Jobs they are: the value of a label.
	Agent string
	// Image has the program tendril, which the pod runs.
	Image string
	// ServiceAccount of the pods; "": the namespace's default. No pod gets its token unless Pod says so.
	ServiceAccount string
	// StartTimeout is how long a runner may take until its first line.
	StartTimeout time.Duration
	// Grace is how long a runner that is told to end may take.
	Grace time.Duration
	// Pod is laid over the pods of a workspace's runs: resources, where they run, further volumes.
	// It may return nil, for nothing.
	Pod func(workspace string, id uuid.UUID) *corev1.PodTemplateSpec
	Log *slog.Logger
}

// Launcher is an agent.Launcher. Close ends its watches.
type Launcher struct {
	options Options
	client  kubernetes.Interface
	jobs    cache.Indexer
	pods    cache.Indexer
	stop    context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	changed chan struct{} // closed, and made again, with each change
}

var _ agent.Launcher = (*Launcher)(nil)

// New begins to watch, and returns when all that is there is known.
func New(ctx context.Context, o Options) (*Launcher, error) {
	client, err := kubernetes.NewForConfig(o.Config)
	if err != nil {
		return nil, fmt.Errorf("reach Kubernetes: %w", err)
	}
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	l := &Launcher{options: o, client: client, stop: stop, changed: make(chan struct{})}
	jobs := client.BatchV1().Jobs(o.Namespace)
	pods := client.CoreV1().Pods(o.Namespace)
	var jobsKnown, podsKnown func() bool
	l.jobs, jobsKnown = l.watch(watching, &batchv1.Job{},
		func(ctx context.Context, m metav1.ListOptions) (runtime.Object, error) { return jobs.List(ctx, m) },
		func(ctx context.Context, m metav1.ListOptions) (watch.Interface, error) { return jobs.Watch(ctx, m) })
	l.pods, podsKnown = l.watch(watching, &corev1.Pod{},
		func(ctx context.Context, m metav1.ListOptions) (runtime.Object, error) { return pods.List(ctx, m) },
		func(ctx context.Context, m metav1.ListOptions) (watch.Interface, error) { return pods.Watch(ctx, m) })
	// What is not allowed, or not there, shows at once, and would only be tried again by a watch.
	if _, err := jobs.List(ctx, metav1.ListOptions{LabelSelector: l.selector(), Limit: 1}); err != nil && (apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)) {
		l.Close()
		return nil, fmt.Errorf("look for the agent's Jobs in namespace %s: %w. The agent's service account needs the Role that the chart makes with launcher: kubernetes", o.Namespace, err)
	}
	if !cache.WaitForCacheSync(ctx.Done(), jobsKnown, podsKnown) {
		l.Close()
		return nil, ctx.Err()
	}
	return l, nil
}

// Close ends the watches. Jobs go on.
func (l *Launcher) Close() {
	l.stop()
	l.running.Wait()
}

func (l *Launcher) selector() string { return agentLabel + "=" + l.options.Agent }

type (
	lists   func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watches func(context.Context, metav1.ListOptions) (watch.Interface, error)
)

// watch keeps what is there of a kind, and tells of each change.
func (l *Launcher) watch(ctx context.Context, kind runtime.Object, list lists, start watches) (cache.Indexer, func() bool) {
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, m metav1.ListOptions) (runtime.Object, error) {
			m.LabelSelector = l.selector()
			return list(ctx, m)
		},
		WatchFuncWithContext: func(ctx context.Context, m metav1.ListOptions) (watch.Interface, error) {
			m.LabelSelector = l.selector()
			return start(ctx, m)
		},
	}
	informer := cache.NewSharedIndexInformer(source, kind, 0, cache.Indexers{claimLabel: byClaim})
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{ // fails only once it is stopped
		AddFunc: func(any) { l.tell() }, UpdateFunc: func(any, any) { l.tell() }, DeleteFunc: func(any) { l.tell() },
	})
	l.running.Go(func() { informer.RunWithContext(ctx) })
	return informer.GetIndexer(), informer.HasSynced
}

// byClaim finds objects by the claim in their label.
func byClaim(object any) ([]string, error) {
	about, ok := object.(metav1.Object)
	if !ok {
		return nil, nil
	}
	return []string{about.GetLabels()[claimLabel]}, nil
}

func (l *Launcher) tell() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.changed)
	l.changed = make(chan struct{})
}

// next is closed when something has changed since.
func (l *Launcher) next() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// patience is between two tries of what the API server did not answer.
const patience = 2 * time.Second

// persist tries again while Kubernetes is away or busy.
func persist(ctx context.Context, call func(context.Context) error) error {
	for {
		err := call(ctx)
		_, told := errors.AsType[*provision.Failure](err)
		if status := apierrors.APIStatus(nil); err == nil || told || errors.As(err, &status) && !passing(err) {
			return err
		}
		timer := time.NewTimer(patience)
		select {
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(ctx.Err(), err)
		case <-timer.C:
		}
	}
}

func passing(err error) bool {
	return apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err)
}

// Start implements agent.Launcher.
func (l *Launcher) Start(ctx context.Context, run agent.RemoteRun) (agent.Remote, error) {
	job, err := l.job(run)
	if err != nil {
		return nil, err
	}
	var made *batchv1.Job
	err = persist(ctx, func(ctx context.Context) (err error) {
		made, err = l.client.BatchV1().Jobs(l.options.Namespace).Create(ctx, job, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // an answer was lost
			made, err = l.client.BatchV1().Jobs(l.options.Namespace).Get(ctx, job.Name, metav1.GetOptions{})
		}
		return err
	})
	if err != nil && ctx.Err() == nil {
		return nil, provision.Fail(provision.CodeRunnerNotStarted, fmt.Sprintf(
			"Kubernetes does not take the run's Job in namespace %s: %v. Nothing was changed.", l.options.Namespace, err), err)
	}
	if err != nil {
		return nil, err
	}
	return &remote{launcher: l, run: run, job: made}, nil
}

// Started implements agent.Launcher.
func (l *Launcher) Started(context.Context) (all []agent.Remote, err error) {
	for _, object := range l.jobs.List() {
		job, ok := object.(*batchv1.Job)
		if !ok || job.DeletionTimestamp != nil {
			continue
		}
		run, err := aboutOf(job)
		if err != nil {
			l.options.Log.Error("a Job with this agent's label is not one of its runs; it is left alone", "job", job.Name, "error", err)
			continue
		}
		all = append(all, &remote{launcher: l, run: run, job: job, seen: true})
	}
	return all, nil
}

// podOf is the newest pod of a Job; nil: it has none.
func (l *Launcher) podOf(job *batchv1.Job) (newest *corev1.Pod) {
	objects, _ := l.pods.ByIndex(claimLabel, job.Labels[claimLabel]) // fails only for an index that there is none of
	for _, object := range objects {
		pod, ok := object.(*corev1.Pod)
		if !ok || !metav1.IsControlledBy(pod, job) {
			continue
		}
		if newest == nil || newest.CreationTimestamp.Before(&pod.CreationTimestamp) {
			newest = pod
		}
	}
	return newest
}

// jobNow is a Job as it is now; nil: it is gone, or another has its name.
func (l *Launcher) jobNow(job *batchv1.Job) *batchv1.Job {
	objects, _ := l.jobs.ByIndex(claimLabel, job.Labels[claimLabel])
	for _, object := range objects {
		if found, ok := object.(*batchv1.Job); ok && found.UID == job.UID {
			return found
		}
	}
	return nil
}

// name is that of a run's Job and of its Secret.
func name(run agent.RemoteRun) string {
	claim := run.Claim.String()
	return "tendril-run-" + strconv.FormatInt(run.Number, 10) + "-" + claim[len(claim)-12:]
}
