// Package metrictest looks at a program's metrics as those who scrape it do.
//
// It must not know which metrics there are.
package metrictest

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
)

// golden are the names that others have built upon. TENDRIL_TEST_UPDATE_GOLDEN=1 writes it.
const golden = "testdata/names.golden"

// Names compares the metrics whose names begin with prefix with the golden file of the
// test's package: dashboards and alerts are made of them. It also checks their form.
func Names(t *testing.T, metrics prometheus.Gatherer, prefix string) {
	t.Helper()
	var names strings.Builder
	for _, family := range gather(t, metrics, prefix) {
		labels := []string{}
		for _, label := range family.GetMetric()[0].GetLabel() {
			labels = append(labels, label.GetName())
		}
		fmt.Fprintf(&names, "%s{%s} %s %s\n", family.GetName(), strings.Join(labels, ","), strings.ToLower(family.GetType().String()), family.GetHelp())
	}
	if os.Getenv("TENDRIL_TEST_UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(golden, []byte(names.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if names.String() != string(want) {
		t.Errorf("the metrics are\n%s\nwant, as %s has them,\n%s\n(TENDRIL_TEST_UPDATE_GOLDEN=1 writes it)", names.String(), golden, want)
	}
	problems, err := testutil.GatherAndLint(metrics)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// Values answers the series whose names begin with prefix, as NAME{LABEL="VALUE",…}. A
// histogram has two, NAME_sum and NAME_count.
func Values(t *testing.T, metrics prometheus.Gatherer, prefix string) map[string]float64 {
	t.Helper()
	found := map[string]float64{}
	for _, family := range gather(t, metrics, prefix) {
		for _, one := range family.GetMetric() {
			var list []string
			for _, label := range one.GetLabel() { // by name
				list = append(list, fmt.Sprintf("%s=%q", label.GetName(), label.GetValue()))
			}
			name, labels := family.GetName(), "{"+strings.Join(list, ",")+"}"
			if family.GetType() == dto.MetricType_HISTOGRAM {
				found[name+"_sum"+labels] = one.GetHistogram().GetSampleSum()
				found[name+"_count"+labels] = float64(one.GetHistogram().GetSampleCount())
				continue
			}
			found[name+labels] = one.GetGauge().GetValue() + one.GetCounter().GetValue()
		}
	}
	return found
}

func gather(t *testing.T, metrics prometheus.Gatherer, prefix string) (ours []*dto.MetricFamily) {
	t.Helper()
	all, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range all {
		if strings.HasPrefix(family.GetName(), prefix) {
			ours = append(ours, family)
		}
	}
	return ours
}
