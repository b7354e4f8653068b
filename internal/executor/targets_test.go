package executor_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
)

// amend adds members to the snapshot.
func (s *site) amend(members map[string]any) {
	s.t.Helper()
	var snapshot map[string]any
	if err := json.Unmarshal(s.job.Assignment.Snapshot, &snapshot); err != nil {
		s.t.Fatal(err)
	}
	for name, value := range members {
		snapshot[name] = value
	}
	var err error
	if s.job.Assignment.Snapshot, err = json.Marshal(snapshot); err != nil {
		s.t.Fatal(err)
	}
}

func TestTargetsAndReplace(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.template(map[string]string{"main.tf": two}, nil)
	s.amend(map[string]any{"targets": []string{"terraform_data.a", "terraform_data.absent"}})
	c := s.do(provision.OperationApply)
	if plan := planOf(c); plan == nil || plan.Add != 1 || plan.Resources[0].Address != "terraform_data.a" {
		t.Errorf("plan with a target = %+v, want terraform_data.a alone", plan)
	}
	for _, want := range []string{"Resource targeting is in effect", "nothing is at the target terraform_data.absent"} {
		if !strings.Contains(c.text(), want) {
			t.Errorf("log lacks %q", want)
		}
	}
	if strings.Contains(c.text(), "nothing is at the target terraform_data.a.") {
		t.Error("the log warns of a target that is there")
	}
	s.amend(map[string]any{"targets": nil, "replace": []string{"terraform_data.a"}})
	c = s.do(provision.OperationApply)
	if plan := planOf(c); plan == nil || plan.Replace != 1 || plan.Add != 1 {
		t.Errorf("plan with a replacement = %+v, want a replaced and b added", plan)
	}
}
