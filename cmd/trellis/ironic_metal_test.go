//go:build metal

package main

import (
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/testkit/pages"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// A server of a local Ironic is provisioned by the line of the page, without anything else being
// set up.
func TestUpWithIronic(t *testing.T) {
	t.Parallel()
	dir := pgtest.Dir(t)
	command := typed(pages.Code(t, "docs/MACHINES.md", "trellis up --with ironic"))
	s := up(t, dir, command[1:]...)
	trellis(t, "pools", "--data-dir", dir).want(t, "pools", exitOK, "metal", "ironic")
	patience.Await(t, "the servers", func() bool {
		return strings.Count(trellis(t, "pools", "show", "metal", "--data-dir", dir).out, "available: Ready to be deployed") == 5
	})
	runtime, err := instance.ReadRuntime(dir)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(method, path, body string) (status int, answer map[string]any) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, runtime.URL+"/api/v1"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+runtime.APIToken)
		request.Header.Set("Content-Type", "application/json")
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = response.Body.Close() }()
		if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, answer
	}
	status, made := ask(http.MethodPost, "/provision", `{"image_id": "debian", "resource_class": "bm"}`)
	if status != http.StatusAccepted || made["server_id"] == nil {
		t.Fatalf("POST /provision = %d %v, want a server", status, made)
	}
	var answer map[string]any
	patience.AwaitShowing(t, "the server", func() string { return trellis(t, "status", "--data-dir", dir).out }, func() bool {
		_, answer = ask(http.MethodGet, "/provision/"+made["operation_id"].(string), "")
		return answer["status"] == "completed"
	})
	s.signal(os.Interrupt)
	s.end(t)
}
