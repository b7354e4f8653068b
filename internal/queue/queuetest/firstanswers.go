package queuetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
)

// answers is what the first agent made of what it was told.
type answers struct {
	call       Recorded
	ids        map[string]string
	provisions map[string]uuid.UUID
}

func (a answers) check(answer []byte) error {
	switch a.call.Function {
	case "register_agent":
		var r struct {
			ClusterID   uuid.UUID `json:"cluster_id"`
			ClusterName string    `json:"cluster_name"`
			Contract    int       `json:"contract"`
			Heartbeat   float64   `json:"heartbeat_seconds"`
			Lease       float64   `json:"lease_seconds"`
		}
		if err := json.Unmarshal(answer, &r); err != nil {
			return err
		}
		if r.ClusterID == uuid.Nil || r.ClusterName != "prod" || r.Contract < 1 || r.Heartbeat != 10 || r.Lease != 120 {
			return fmt.Errorf("answered %s", answer)
		}
	case "agent_heartbeat":
		var p struct {
			Cancel, Lost []uuid.UUID
			Poll         float64 `json:"poll_seconds"`
			Heartbeat    float64 `json:"heartbeat_seconds"`
		}
		if err := json.Unmarshal(answer, &p); err != nil {
			return err
		}
		if p.Cancel == nil || p.Lost == nil || len(p.Cancel) > 0 || p.Poll <= 0 || p.Heartbeat <= 0 {
			return fmt.Errorf("answered %s", answer)
		}
	case "fetch_next_provision":
		return a.assignment(answer)
	case "insert_provision_log":
		return a.number(answer)
	case "update_provision_status":
		if len(answer) > 0 && string(answer) != "null" && string(answer) != `""` {
			return fmt.Errorf("answered %s, want nothing", answer)
		}
	case "fail_orphaned_provisions":
		return a.orphans(answer)
	default:
		return fmt.Errorf("nobody knows what it should answer")
	}
	return nil
}

// number checks the number of the next chunk.
func (a answers) number(answer []byte) error {
	first, firstErr := read[int64](a.call.Values[2])
	chunks, chunksErr := read[[]json.RawMessage](a.call.Values[3])
	next, err := read[int64](answer)
	if err := errors.Join(firstErr, chunksErr, err); err != nil {
		return err
	}
	// A call without chunks asks which is expected.
	if len(chunks) > 0 && next != first+int64(len(chunks)) || next < first {
		return fmt.Errorf("answered %s, want the next chunk's number", answer)
	}
	return nil
}

// orphans checks that the killed run is ended, by the start after.
func (a answers) orphans(answer []byte) error {
	orphans, err := read[[]uuid.UUID](answer)
	if err != nil {
		return err
	}
	var want []uuid.UUID
	if string(a.call.Values[2]) == `"`+a.ids["${boot 3}"]+`"` {
		want = []uuid.UUID{a.provisions["c"]}
	}
	if !slices.Equal(orphans, want) {
		return fmt.Errorf("answered %s, want %v", answer, want)
	}
	return nil
}

// said is what the call adds to the log of a workspace's run.
func (a answers) said() (workspace, text string) {
	if a.call.Function != "insert_provision_log" {
		return "", ""
	}
	var chunks []struct{ Text string }
	_ = json.Unmarshal(a.call.Values[3], &chunks) // has been read before
	for _, c := range chunks {
		text += c.Text
	}
	for name, id := range a.ids {
		if string(a.call.Values[1]) == `"`+id+`"` {
			workspace = strings.TrimSuffix(strings.TrimPrefix(name, "${claim "), "}")
		}
	}
	return workspace, text
}

// assignment checks a row, or none: a claim that got one is called by its
// workspace.
func (a answers) assignment(answer []byte) error {
	var rows []struct {
		ClaimID        string          `json:"claim_id"`
		ProvisionID    uuid.UUID       `json:"provision_id"`
		Number         int64           `json:"number"`
		WorkspaceID    uuid.UUID       `json:"workspace_id"`
		WorkspaceName  string          `json:"workspace_name"`
		Operation      string          `json:"operation"`
		ConfigSnapshot json.RawMessage `json:"config_snapshot"`
		PinnedCommit   string          `json:"pinned_commit"`
	}
	if err := json.Unmarshal(answer, &rows); err != nil {
		return fmt.Errorf("answered %s: %w", answer, err)
	}
	for workspace, id := range a.provisions {
		claim := a.ids["${claim "+workspace+"}"]
		if string(a.call.Values[3]) != `"`+claim+`"` {
			continue
		}
		if len(rows) != 1 || rows[0].ClaimID != claim || rows[0].ProvisionID != id || rows[0].WorkspaceName != workspace ||
			rows[0].Number < 1 || rows[0].WorkspaceID == uuid.Nil || rows[0].Operation != "apply" || !strings.Contains(string(rows[0].ConfigSnapshot), "git.example") {
			return fmt.Errorf("answered %s, want what is queued on %s", answer, workspace)
		}
		return nil
	}
	if len(rows) != 0 {
		return fmt.Errorf("answered %s, want nothing", answer)
	}
	return nil
}
