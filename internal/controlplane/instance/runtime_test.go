package instance

import (
	"strings"
	"testing"
)

// Nobody is told to start what cannot be started where they are.
func TestNotRunning(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		system string
		start  bool
	}{{"linux", true}, {"darwin", false}} {
		says := notRunning(c.system, "/data")
		if got := strings.Contains(says, "start it with"); got != c.start || !strings.Contains(says, "trellis login URL") {
			t.Errorf("on %s: %q; to start it is advised: %v, want %v, and to log in", c.system, says, got, c.start)
		}
	}
}
