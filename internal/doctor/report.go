package doctor

import "fmt"

// Status is the verdict on one thing.
type Status string

// The verdicts. What is OK may still tell something worth knowing.
const (
	OK      Status = "ok"
	Warn    Status = "warn"    // it works, and is not as it should be
	Fail    Status = "fail"    // an agent would not work, or not safely
	Skipped Status = "skipped" // could not be looked at, or does not apply
)

// Result is what was found about one thing. Names and fields are for programs
// to go by: they stay.
type Result struct {
	Name    string `json:"name"`
	Status  Status `json:"status"`
	Message string `json:"message"`
	// Action is what to do about it; "" where there is nothing to do.
	Action string `json:"action,omitempty"`
}

// Report is what was found about everything.
type Report struct {
	// Status is the worst of the checks': fail, warn or ok.
	Status Status `json:"status"`
	// Version is the program's.
	Version string   `json:"version"`
	Checks  []Result `json:"checks"`
}

// Failed reports whether anything failed.
func (r Report) Failed() bool { return r.Status == Fail }

// Count returns how many checks have a status.
func (r Report) Count(status Status) (n int) {
	for _, check := range r.Checks {
		if check.Status == status {
			n++
		}
	}
	return n
}

func newReport(version string, checks []Result) Report {
	r := Report{Status: OK, Version: version, Checks: checks}
	switch {
	case r.Count(Fail) > 0:
		r.Status = Fail
	case r.Count(Warn) > 0:
		r.Status = Warn
	}
	return r
}

// verdict is a Result without its name.
type verdict struct {
	status          Status
	message, action string
}

func ok(format string, args ...any) verdict {
	return verdict{status: OK, message: fmt.Sprintf(format, args...)}
}

func warn(action, format string, args ...any) verdict {
	return verdict{status: Warn, action: action, message: fmt.Sprintf(format, args...)}
}

func fail(action, format string, args ...any) verdict {
	return verdict{status: Fail, action: action, message: fmt.Sprintf(format, args...)}
}

func skipped(format string, args ...any) verdict {
	return verdict{status: Skipped, message: fmt.Sprintf(format, args...)}
}
