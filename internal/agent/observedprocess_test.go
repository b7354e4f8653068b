package agent

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/tendril-run/tendril/internal/health"
	"github.com/tendril-run/tendril/internal/metrics"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// observe makes the agent of a process, and serves how it is where the test
// wants that, on a port that it says.
func observe(s setup, o Options) (_ *Agent, stop func(), err error) {
	if s.Margin == 0 {
		return New(o), func() {}, nil
	}
	m := metrics.New("test")
	o.Observer, o.Loops, o.Standing = m, health.NewLoops(s.Margin), health.NewStanding()
	a := New(o)
	m.Watch(func() metrics.Status { return metrics.Status(a.Status()) })
	server, err := health.Listen("127.0.0.1:0", health.Handler(o.Loops, o.Standing, m.Handler(slog.New(slog.DiscardHandler))))
	if err != nil {
		return nil, nil, err
	}
	fmt.Fprintf(os.Stderr, "serving at %s\n", server.Address())
	return a, server.Close, nil
}

var servingAt = regexp.MustCompile(`serving at (\S+)\n`)

// get asks the agent's port.
func (a *agentUnderTest) get(t *testing.T, path string) (status int, body string) {
	t.Helper()
	var at []string
	patience.Await(t, "the agent to serve", func() bool { at = servingAt.FindStringSubmatch(a.log.String()); return at != nil })
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at[1]+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	read, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(read)
}

// reason asks a probe and returns its status and why it is not 200.
func (a *agentUnderTest) reason(t *testing.T, path string) (status int, reason string) {
	t.Helper()
	status, body := a.get(t, path)
	var said struct{ Reason string }
	if err := json.Unmarshal([]byte(body), &said); err != nil {
		t.Fatalf("GET %s = %q: %v", path, body, err)
	}
	return status, said.Reason
}

// scrape returns the values of all series, as NAME{LABEL="VALUE",…}.
func (a *agentUnderTest) scrape(t *testing.T) map[string]float64 {
	t.Helper()
	status, body := a.get(t, "/metrics")
	if status != http.StatusOK {
		t.Fatalf("GET /metrics = %d %q", status, body)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	series, err := expfmt.ExtractSamples(&expfmt.DecodeOptions{Timestamp: model.Now()}, values(families)...)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, one := range series {
		found[one.Metric.String()] = float64(one.Value)
	}
	return found
}

func values[K comparable, V any](of map[K]V) []V {
	var list []V
	for _, value := range of {
		list = append(list, value)
	}
	return list
}

// measures waits until a series has a value, and fails at the end with all that
// are named alike.
func (a *agentUnderTest) measures(t *testing.T, want map[string]float64) {
	t.Helper()
	var got map[string]float64
	wrong := ""
	holds := func() bool {
		got, wrong = a.scrape(t), ""
		for series, value := range want {
			if have, ok := got[series]; !ok || have != value {
				wrong += fmt.Sprintf("\n%s = %v (there: %t), want %v", series, have, ok, value)
			}
		}
		return wrong == ""
	}
	defer func() {
		if t.Failed() {
			t.Logf("the metrics that are wrong:%s", wrong)
		}
	}()
	patience.Await(t, "the metrics to be right", holds)
}
