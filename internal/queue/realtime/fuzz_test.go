package realtime

import (
	"encoding/json"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/realtimetest"
)

// Whatever a server sends, a session goes on or ends: nothing that was not asked for joins or wakes.
func FuzzFrame(f *testing.F) {
	for _, name := range []string{"joined", "refused", "beaten", "broadcast", "system-ready", "system-error", "system-postgres", "close", "error", "presence", "changes"} {
		f.Add(realtimetest.Frame(f, name, "TOPIC", "realtime:a", "REF", "1", "EVENT", "work", "REASON", "no"))
	}
	f.Fuzz(func(t *testing.T, text string) {
		var fr frame
		if json.Unmarshal([]byte(text), &fr) != nil {
			return
		}
		for _, s := range []session{{topic: "realtime:a", joinRef: 1}, {topic: "realtime:a", joinRef: 1, joined: true, beatRef: 2}} {
			was, joins := s.joined, 0
			err := s.take(fr, callbacks{joined: func() { joins++ }, heard: func(string) {
				if !was || fr.Event != "broadcast" || fr.Topic != s.topic {
					t.Errorf("%s wakes", text)
				}
			}})
			if joins > 0 && (err != nil || fr.Topic != s.topic) || joins > 1 {
				t.Errorf("%s joins %d times, and gives %v", text, joins, err)
			}
		}
	})
}
