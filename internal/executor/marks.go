package executor

import (
	"sync"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
)

// mostMarks is how many marks wait for the next report; what is beyond is dropped.
const mostMarks = 64

// marks are how long parts of the run took, until the next report has them. Those of nil are
// not wanted.
type marks struct {
	mu   sync.Mutex
	kept []provision.Mark
}

// ended notes that something of that name, which began then, has ended now.
func (m *marks) ended(name string, began time.Time) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.kept) < mostMarks {
		m.kept = append(m.kept, provision.Mark{Name: name, Began: began, Ended: time.Now()})
	}
}

// take returns those that no report has had.
func (m *marks) take() []provision.Mark {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	taken := m.kept
	m.kept = nil
	return taken
}
