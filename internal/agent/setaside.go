package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/tendril-run/tendril/internal/logstream"
)

// mostSetAside is how many files rejected/ has at most of what the database did not
// take of one run. A template that makes more of it fills no disk.
const mostSetAside = 100

// setAside keeps in rejected/ what the database does not take for its content. A
// repeat after a crash has the same name.
func (s *spool) setAside(r logstream.Refused) error {
	path := s.dir.path("rejected", fmt.Sprintf("%s.%s-%d.json", s.claim, r.Kind, r.Number))
	if kept, err := filepath.Glob(s.dir.path("rejected", s.claim.String()+".*-*.json")); err == nil && len(kept) >= mostSetAside {
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			return nil // enough are kept
		}
	}
	content, err := json.MarshalIndent(struct {
		spoolAbout
		Claim   string    `json:"claim"`
		Kind    string    `json:"kind"`
		N       int64     `json:"n"`
		At      time.Time `json:"set_aside_at"`
		Refused string    `json:"refused"`
		Content any       `json:"content"`
	}{s.about, s.claim.String(), r.Kind, r.Number, time.Now().UTC().Truncate(time.Second), r.Why.Error(), r.Content}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode what the database refuses: %w", err)
	}
	return writeFile(path, append(content, '\n'))
}
