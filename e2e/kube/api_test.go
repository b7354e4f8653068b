//go:build kube

package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// object is what the tests look at in one of the API's.
type object struct {
	Metadata struct {
		Name            string            `json:"name"`
		UID             string            `json:"uid"`
		ResourceVersion string            `json:"resourceVersion"`
		Generation      int               `json:"generation"`
		Labels          map[string]string `json:"labels"`
	} `json:"metadata"`
	Data   map[string]string `json:"data"`
	Spec   map[string]any    `json:"spec"`
	Status map[string]any    `json:"status"`
}

// refusedError is an answer that is not 2xx.
type refusedError struct {
	code   int
	answer string
}

func (e *refusedError) Error() string { return fmt.Sprintf("answered %d: %s", e.code, e.answer) }

// call asks the API as the administrator.
func (c *controlPlane) call(ctx context.Context, method, path string, body any) ([]byte, error) {
	content, kind := io.Reader(nil), "application/json"
	if method == http.MethodPatch {
		kind = "application/merge-patch+json"
	}
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(encoded)
	}
	r, err := http.NewRequestWithContext(ctx, method, c.url+path, content)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+c.token)
	r.Header.Set("Content-Type", kind)
	response, err := c.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode/100 != 2 {
		err = &refusedError{response.StatusCode, string(answer)}
	}
	return answer, err
}

// addMonitors defines ServiceMonitor, as the Prometheus operator does. The module
// is one that the charts' own tests take, too.
func (c *controlPlane) addMonitors(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "go", "mod", "download", "-json", "github.com/prometheus-operator/prometheus-operator@v0.85.0").Output()
	if err != nil {
		return fmt.Errorf("fetch the definition of ServiceMonitor: %w: %s", err, out)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		return err
	}
	apply := c.kubectl(ctx, "apply", "--server-side", "-f", filepath.Join(module.Dir, "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml"))
	if out, err := apply.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl apply: %w: %s", err, out)
	}
	out, err = c.kubectl(ctx, "wait", "--for=condition=Established", "--timeout=60s", "crd/servicemonitors.monitoring.coreos.com").CombinedOutput()
	if err != nil {
		return fmt.Errorf("kubectl wait: %w: %s", err, out)
	}
	return nil
}

// kubectl is a command of it, with nothing of this user's.
func (c *controlPlane) kubectl(ctx context.Context, args ...string) *exec.Cmd {
	return c.command(ctx, filepath.Join("kubernetes", "kubectl"), args...)
}

func (c *controlPlane) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	helm, _ := exec.LookPath("helm") // TestMain has found it
	cmd := exec.CommandContext(ctx, filepath.Join(filepath.Dir(helm), program), args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + c.dir, "KUBECONFIG=" + c.kubeconfig}
	return cmd
}

// await waits for a condition of what the controllers do in their own time.
func await(t *testing.T, what string, holds func() (bool, string)) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(90 * time.Second) // the machine may be busy
	defer limit.Stop()
	for {
		ok, found := holds()
		if ok {
			return
		}
		select {
		case <-t.Context().Done():
			t.Fatalf("stopped while waiting for %s; now: %s", what, found)
		case <-limit.C:
			t.Fatalf("%s: not within 90 s; now: %s", what, found)
		case <-tick.C:
		}
	}
}
