package kubejobs

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"github.com/tendril-run/tendril/internal/agent"
	"github.com/tendril-run/tendril/internal/config"
)

const (
	// ownNamespace is where a pod finds the name of its namespace.
	ownNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
	// calls and burst bound how many calls a second an agent makes, beyond its watches.
	calls, burst = 100, 200
)

// How a Lease is held: another takes over within leaseFor and a turn.
const (
	leaseFor   = 8 * time.Second
	leaseRenew = 5 * time.Second
	leaseTurn  = time.Second
)

// Open is an agentcmd.OpenLauncher: it makes the launcher that a configuration describes, once this
// agent holds the Lease that it names, if any. Its context ends when that is lost.
func Open(ctx context.Context, c config.Config, log *slog.Logger) (context.Context, agent.Launcher, func(), error) {
	klog.SetSlogLogger(slog.New(warnings{log.Handler()}))
	way, err := reach(c.Jobs)
	if err != nil {
		return ctx, nil, nil, err
	}
	if way.namespace == "" {
		return ctx, nil, nil, errors.New("kubernetes.namespace: nothing says where Jobs are to be made, for this agent runs in no pod")
	}
	o := Options{
		Config: way.config, Namespace: way.namespace, Agent: labelOf(c.Name), Image: c.Jobs.Image, ServiceAccount: c.Jobs.ServiceAccount,
		StartTimeout: c.Jobs.StartTimeout.Duration, Grace: c.DrainTimeout.Duration + c.Run.CancelGrace.Duration, Log: log,
	}
	if o.Pod, err = readPods(c.Jobs); err != nil {
		return ctx, nil, nil, err
	}
	leave := func() {}
	if c.Jobs.Lease != "" {
		o.Agent = labelOf(c.Jobs.Lease)
		if ctx, leave, err = hold(ctx, way, c.Jobs.Lease, c.Name, log); err != nil {
			return ctx, nil, nil, err
		}
	}
	l, err := New(ctx, o)
	if err != nil {
		leave()
		return ctx, nil, nil, err
	}
	return ctx, l, func() { l.Close(); leave() }, nil
}

// labelOf is a name as the value of a label: itself, or what tells it apart where that is none.
func labelOf(name string) string {
	if len(validation.IsValidLabelValue(name)) == 0 {
		return name
	}
	return fmt.Sprintf("%x", sha256.Sum256([]byte(name)))[:40]
}

// warnings lets through what the library says of trouble: all else is its own affair.
type warnings struct{ slog.Handler }

// Enabled implements slog.Handler.
func (w warnings) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && w.Handler.Enabled(ctx, level)
}

// way is how Kubernetes is reached.
type way struct {
	config    *rest.Config
	namespace string
}

func reach(j config.Jobs) (w way, err error) {
	if j.Kubeconfig != "" {
		loaded := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(&clientcmd.ClientConfigLoadingRules{ExplicitPath: j.Kubeconfig}, nil)
		if w.config, err = loaded.ClientConfig(); err == nil {
			w.namespace, _, err = loaded.Namespace()
		}
	} else if w.config, err = rest.InClusterConfig(); err == nil {
		var text []byte
		if text, err = os.ReadFile(ownNamespace); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		w.namespace = strings.TrimSpace(string(text))
	}
	if err != nil {
		return w, fmt.Errorf("reach Kubernetes: %w", err)
	}
	if j.Namespace != "" {
		w.namespace = j.Namespace
	}
	w.config.QPS, w.config.Burst = calls, burst
	w.config.UserAgent = "tendril-dispatcher"
	return w, nil
}

// readPods reads what is laid over pods, by workspace.
func readPods(j config.Jobs) (func(string, uuid.UUID) *corev1.PodTemplateSpec, error) {
	var usual *corev1.PodTemplateSpec
	var err error
	if j.PodFile != "" {
		if usual, err = readPod("kubernetes.pod_file", j.PodFile); err != nil {
			return nil, err
		}
	}
	classes, err := j.Classes()
	if err != nil {
		return nil, fmt.Errorf("kubernetes.pod_files: %w", err)
	}
	pods := make([]*corev1.PodTemplateSpec, len(classes))
	for i, class := range classes {
		if pods[i], err = readPod("kubernetes.pod_files", class.File); err != nil {
			return nil, err
		}
	}
	return func(workspace string, id uuid.UUID) *corev1.PodTemplateSpec {
		for i, class := range classes {
			if class.Workspaces.Match(workspace, id) {
				return pods[i]
			}
		}
		return usual
	}, nil
}

func readPod(key, path string) (*corev1.PodTemplateSpec, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	pod := &corev1.PodTemplateSpec{}
	if err := yaml.UnmarshalStrict(text, pod); err != nil {
		return nil, fmt.Errorf("%s: %s: %w", key, path, err)
	}
	return pod, nil
}

// hold waits until this agent holds the Lease. The context that it returns ends when it does not
// any more; leave releases it.
func hold(ctx context.Context, w way, lease, name string, log *slog.Logger) (context.Context, func(), error) {
	client, err := kubernetes.NewForConfig(w.config)
	if err != nil {
		return ctx, nil, fmt.Errorf("reach Kubernetes: %w", err)
	}
	holding, lost := context.WithCancel(ctx)
	electing, leave := context.WithCancel(context.WithoutCancel(ctx))
	held, over := make(chan struct{}), make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Name: lease, Namespace: w.namespace}, Client: client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: name},
		},
		LeaseDuration: leaseFor, RenewDeadline: leaseRenew, RetryPeriod: leaseTurn, ReleaseOnCancel: true, Name: lease,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(held) },
			OnStoppedLeading: func() { lost() },
			OnNewLeader: func(other string) {
				if other != name {
					log.Info("another agent holds the Lease; waiting", "lease", lease, "agent", other)
				}
			},
		},
	})
	if err != nil {
		leave()
		lost()
		return ctx, nil, fmt.Errorf("hold the Lease %s: %w", lease, err)
	}
	go func() {
		defer close(over)
		elector.Run(electing)
	}()
	end := func() {
		leave()
		<-over
		lost()
	}
	select {
	case <-held:
		log.Info("holds the Lease", "lease", lease)
		return holding, end, nil
	case <-over:
		end()
		return ctx, nil, fmt.Errorf("the Lease %s could not be held", lease)
	case <-ctx.Done():
		end()
		return ctx, nil, ctx.Err()
	}
}
