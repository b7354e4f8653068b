//go:build kube

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"
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
		for ctx.Err() == nil { // the API server ends a watch now and then
			if err := n.report(ctx, component, become); err != nil && ctx.Err() == nil {
				t.Errorf("play the kubelet: %v", err)
				return
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

// report answers what a watch of the pods tells, until that ends.
func (n *namespace) report(ctx context.Context, component string, become status) error {
	response, err := kubernetes.request(ctx, http.MethodGet, n.path("pods")+"?watch=true&labelSelector=app.kubernetes.io/component="+component, nil)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	for events := json.NewDecoder(response.Body); ; {
		var event struct {
			Type   string
			Object object
		}
		if events.Decode(&event) != nil {
			return nil // it has ended
		}
		if event.Type == "DELETED" || event.Object.Status["phase"] != "Pending" {
			continue
		}
		patch := map[string]any{"status": json.RawMessage(become)}
		if _, err := kubernetes.call(ctx, http.MethodPatch, n.path("pods")+"/"+event.Object.Metadata.Name+"/status", patch); err != nil {
			return fmt.Errorf("report of pod %s: %w", event.Object.Metadata.Name, err)
		}
	}
}
