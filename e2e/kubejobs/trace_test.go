//go:build kube

package kubejobs

import (
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/testkit/otlptest"
)

// A run is one trace, from the click on, also where its agent was killed in the middle: the runner
// records it, where the agent's traces go.
func TestTraceSurvivesTheAgent(t *testing.T) {
	const trace, click = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	w, collector := newWorld(t), otlptest.New(t)
	a := w.dispatcher("dispatcher", 2, "")
	for _, entry := range collector.Environment() {
		name, value, _ := strings.Cut(entry, "=")
		if to, err := url.Parse(value); err == nil && to.Host != "" {
			value = strings.Replace(value, to.Host, host+":"+forward(t, "tcp", to.Host), 1)
		}
		a.Set(name, value)
	}
	a.Start().AwaitOutput("registered")
	w.Exec(t, "SELECT set_config('request.headers', jsonb_build_object('traceparent', $1::text)::text, false)", "00-"+trace+"-"+click+"-01")
	var id uuid.UUID
	snapshot := site.SnapshotOf(w.template("slow", map[string]string{"main.tf": slow}), "one", map[string]any{"seconds": 5})
	if err := w.Conn.QueryRow(t.Context(), "INSERT INTO public.provisions (cluster_id, config_snapshot) VALUES ($1, $2) RETURNING id", w.Cluster, snapshot).Scan(&id); err != nil {
		t.Fatal(err)
	}
	w.AwaitLine(id, "begun")
	a.Kill()
	if got := w.AwaitEnd(id); got != "SUCCESS" {
		t.Fatalf("the run ended %s\n%s", got, w.Log(t, id))
	}
	all := collector.Await(t, "run", 1)
	known, runs := map[string]bool{click: true}, 0
	for _, s := range all {
		known[s.ID] = true
	}
	for _, s := range all {
		if s.Name == "run" {
			runs++
		}
		if s.Trace != trace || !known[s.Parent] || (s.Parent == click) != (s.Name == "run") {
			t.Errorf("span %s is not in the tree of its run:\n%s", s.Name, otlptest.Tree(all))
		}
	}
	if runs != 1 {
		t.Errorf("%d runs are recorded, want one:\n%s", runs, otlptest.Tree(all))
	}
	a.Start().AwaitOutput("registered")
	w.awaitNothingLeft()
}
