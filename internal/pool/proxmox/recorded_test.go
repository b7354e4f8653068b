package proxmox

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/pveversions"
)

// sent is a transport that answers with one recorded answer.
type sent struct {
	status int
	reason string
	body   []byte
}

func (s sent) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: s.status, Status: strconv.Itoa(s.status) + " " + s.reason, Body: io.NopCloser(bytes.NewReader(s.body)), Header: http.Header{}, Request: r}, nil
}

// Each recorded answer that the driver may get is read, and each recorded refusal taken for what
// it is.
func TestRecordedAnswers(t *testing.T) {
	t.Parallel()
	var file struct {
		Exchanges []struct {
			Title, Method, Path, Reason string
			Status                      int
			Body                        json.RawMessage
		}
	}
	data := pveversions.Beside(t, "pve-exchanges.json")
	if data == nil {
		t.Skip("recorded answers are not read: there is no shared/pve-exchanges.json beside the repository")
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	type task struct {
		Status string `json:"status"`
		Exit   string `json:"exitstatus"`
	}
	kinds := []struct {
		form *regexp.Regexp
		out  func() any
		seen int
	}{
		{regexp.MustCompile(`^/nodes$`), func() any { return new([]nodeRow) }, 0},
		{regexp.MustCompile(`^/nodes/pve1/qemu(\?|$)`), func() any { return new([]machineRow) }, 0},
		{regexp.MustCompile(`^/cluster/resources\?type=vm$`), func() any { return new([]machineRow) }, 0},
		{regexp.MustCompile(`^/nodes/pve1/qemu/\d+/config`), func() any { return new(map[string]json.RawMessage) }, 0},
		{regexp.MustCompile(`^/nodes/pve1/qemu/\d+/status/current$`), func() any { return new(current) }, 0},
		{regexp.MustCompile(`^/nodes/pve1/storage(\?|$)`), func() any { return new([]storageRow) }, 0},
		{regexp.MustCompile(`^/nodes/pve1/tasks/UPID[^/]*/status$`), func() any { return new(task) }, 0},
		{regexp.MustCompile(`^/access/permissions`), func() any { return new(map[string]map[string]number) }, 0},
		{regexp.MustCompile(`^/cluster/nextid`), func() any { return new(number) }, 0},
	}
	l := newLab(t)
	d := l.driver()
	refused := 0
	for _, e := range file.Exchanges {
		path, ok := strings.CutPrefix(e.Path, "/api2/json")
		if !ok || e.Status == 0 || len(e.Body) == 0 {
			continue
		}
		d.client.http.Transport = sent{e.Status, e.Reason, e.Body}
		if e.Status != http.StatusOK {
			refused++
			_, err := d.client.once(t.Context(), e.Method, path, nil, nil)
			var api *apiError
			if !errors.As(err, &api) || api.status != e.Status || !strings.Contains(err.Error(), strings.Join(strings.Fields(e.Reason), " ")) {
				t.Errorf("%s: %v, want %d %s", e.Title, err, e.Status, e.Reason)
			}
			noMachine := strings.Contains(e.Reason, ".conf' does not exist") || strings.Contains(e.Reason, "unable to find configuration file")
			passes := strings.Contains(e.Reason, "got timeout") || strings.Contains(e.Reason, "VM is locked")
			if missing(err) != noMachine || transient(err) != passes {
				t.Errorf("%s: %v is taken for missing: %v, for what passes: %v", e.Title, err, missing(err), transient(err))
			}
			continue
		}
		i := slices.IndexFunc(kinds, func(k struct {
			form *regexp.Regexp
			out  func() any
			seen int
		}) bool {
			return k.form.MatchString(path)
		})
		if e.Method != http.MethodGet || i < 0 {
			continue
		}
		kinds[i].seen++
		if _, err := d.client.once(t.Context(), e.Method, path, nil, kinds[i].out()); err != nil {
			t.Errorf("%s: %v", e.Title, err)
		}
	}
	for _, k := range kinds {
		if k.seen == 0 {
			t.Errorf("no answer of %s was recorded", k.form)
		}
	}
	if refused < 100 {
		t.Errorf("only %d refusals were recorded", refused)
	}
}

// Older versions write numbers as texts and leave what is unset empty.
func TestNumbersOfOlderVersions(t *testing.T) {
	t.Parallel()
	var row machineRow
	if err := json.Unmarshal([]byte(`{"vmid":"100","template":"","status":"running","name":"a"}`), &row); err != nil || row.VMID != 100 || row.Template != 0 {
		t.Errorf("%+v, %v", row, err)
	}
	for text, want := range map[string]number{`1`: 1, `"1"`: 1, `true`: 1, `false`: 0, `null`: 0, `0.25`: 0.25, `"2.5"`: 2.5} {
		var n number
		if err := json.Unmarshal([]byte(text), &n); err != nil || n != want {
			t.Errorf("%s is read as %v, %v", text, n, err)
		}
	}
	var n number
	if json.Unmarshal([]byte(`"many"`), &n) == nil || json.Unmarshal([]byte(`"NaN"`), &n) == nil {
		t.Error("a text is taken for a number")
	}
}
