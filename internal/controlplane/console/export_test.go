package console

import (
	"strings"
	"time"
)

// Since lets tests compare the server's words for a time with the script's.
func Since(at, now time.Time) string {
	p, err := loadPages()
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	if err := p.byName["error"].ExecuteTemplate(&b, "time-words", &instant{at, now}); err != nil {
		return err.Error()
	}
	return b.String()
}

// NewInstallation is what the pages show of how to start an agent.
var NewInstallation = newInstallation
