//go:build kube

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"
)

// play does a kubelet's part for the pods of a component: it reports how each
// stands, by what becomes of its containers, until the test ends. There is no
// container.
func (n *namespace) play(t *testing.T, component string, become status) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var playing sync.WaitGroup
	t.Cleanup(func() { cancel(); playing.Wait() })
	playing.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			if err := n.report(ctx, component, become); err != nil && ctx.Err() == nil {
				t.Errorf("play the kubelet: %v", err)
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
}

// status is what is reported of a pod.
type status string

const (
	succeeds status = `{"phase":"Succeeded"}`
	fails    status = `{"phase":"Failed"}`
	runs     status = `{"phase":"Running","conditions":[{"type":"Ready","status":"True"},{"type":"ContainersReady","status":"True"},{"type":"PodScheduled","status":"True"}]}`
)

// report says how each pod stands that nobody has reported of. It lists them: with
// Debian's etcd a watch that is not told where to begin fails while all is quiet.
func (n *namespace) report(ctx context.Context, component string, become status) error {
	answer, err := kubernetes.call(ctx, http.MethodGet, n.path("pods")+"?fieldSelector=status.phase=Pending&labelSelector=app.kubernetes.io/component="+component, nil)
	if err != nil {
		return err
	}
	var pods struct{ Items []object }
	if err := json.Unmarshal(answer, &pods); err != nil {
		return err
	}
	for _, pod := range pods.Items {
		_, err := kubernetes.call(ctx, http.MethodPatch, n.path("pods")+"/"+pod.Metadata.Name+"/status", map[string]any{"status": json.RawMessage(become)})
		if refused, ok := errors.AsType[*refusedError](err); ok && refused.code == http.StatusNotFound {
			continue // it was removed meanwhile
		}
		if err != nil {
			return fmt.Errorf("report of pod %s: %w", pod.Metadata.Name, err)
		}
	}
	return nil
}
