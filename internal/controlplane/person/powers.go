package person

// Powers are what an API token may do, where that is less than its person may: the database holds
// it to them, as create_api_token() has them. What is absent has the default named here.
type Powers struct {
	// Change is "nothing" or "propose" (the default): plans of its runs wait for a person.
	Change string `json:"change,omitempty"`
	// MayApply are patterns of workspaces where they don't; none by default.
	MayApply []string `json:"may_apply,omitempty"`
	// Workspaces are patterns of those where it may change anything; all by default.
	Workspaces []string `json:"workspaces,omitempty"`
	// Destroy says whether it may ask for a destroy; nil: it may.
	Destroy *bool `json:"destroy,omitempty"`
	// Approve says whether it may approve plans that others propose.
	Approve bool `json:"approve,omitempty"`
	// CallsPerMinute is how many requests it is answered, RunsPerHour how many runs it may ask for;
	// 0: any number.
	CallsPerMinute int `json:"calls_per_minute,omitempty"`
	RunsPerHour    int `json:"runs_per_hour,omitempty"`
}

// DestroysNothing reports whether it may not ask for a destroy.
func (p *Powers) DestroysNothing() bool { return p.Destroy != nil && !*p.Destroy }
