package terraform

import (
	"archive/zip"
	"encoding/json"
	"fmt"
	"io"
)

// StateHeader is what every state says about itself.
type StateHeader struct {
	Version int    `json:"version"`
	Serial  uint64 `json:"serial"`
	Lineage string `json:"lineage"`
}

// ReadStateHeader reads a whole state. One that is cut short is an error.
func ReadStateHeader(state []byte) (StateHeader, error) {
	var header StateHeader
	if err := json.Unmarshal(state, &header); err != nil {
		return StateHeader{}, fmt.Errorf("read the state: %w", err)
	}
	if header.Version <= 0 {
		return StateHeader{}, fmt.Errorf("read the state: it has no version")
	}
	return header, nil
}

// Follow returns state with a serial above that of the state it was made from.
// An engine that fails before it has written anything keeps the old serial, and
// would then refuse to push what it left: "a different state that has the same
// serial". A state that was written by somebody else since has that serial too,
// so the push is still refused where it must be.
func Follow(state []byte, base StateHeader) ([]byte, error) {
	header, err := ReadStateHeader(state)
	if err != nil {
		return nil, err
	}
	if base.Lineage == "" || header.Lineage != base.Lineage || header.Serial > base.Serial {
		return state, nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(state, &fields); err != nil {
		return nil, fmt.Errorf("read the state: %w", err)
	}
	fields["serial"] = fmt.Appendf(nil, "%d", base.Serial+1)
	return json.Marshal(fields)
}

// PlanBase is the state that a saved plan was made from.
type PlanBase struct {
	State StateHeader
	// Room is how many bytes the state may have after the apply, as a guess:
	// twice what it has now, and four times the plan, for what is planned may
	// come back as more than one attribute.
	Room int64
}

// ReadPlanBase looks into a saved plan, which is a zip archive. It starts no
// engine.
func ReadPlanBase(planFile string) (PlanBase, error) {
	archive, err := zip.OpenReader(planFile)
	if err != nil {
		return PlanBase{}, fmt.Errorf("read the plan: %w", err)
	}
	defer archive.Close() //nolint:errcheck // opened for reading
	var base PlanBase
	for _, entry := range archive.File {
		switch entry.Name {
		case "tfstate":
			base.Room += 2 * int64(entry.UncompressedSize64)
			if base.State, err = readHeader(entry); err != nil {
				return PlanBase{}, err
			}
		case "tfplan":
			base.Room += 4 * int64(entry.UncompressedSize64)
		}
	}
	return base, nil
}

func readHeader(entry *zip.File) (StateHeader, error) {
	file, err := entry.Open()
	if err != nil {
		return StateHeader{}, fmt.Errorf("read the plan's state: %w", err)
	}
	defer file.Close() //nolint:errcheck // opened for reading
	content, err := io.ReadAll(file)
	if err != nil {
		return StateHeader{}, fmt.Errorf("read the plan's state: %w", err)
	}
	return ReadStateHeader(content)
}

// Succeed returns state as the one that comes after another, whatever its own
// past: with that one's lineage and the next serial.
func Succeed(state []byte, over StateHeader) ([]byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(state, &fields); err != nil {
		return nil, fmt.Errorf("read the state: %w", err)
	}
	lineage, err := json.Marshal(over.Lineage)
	if err != nil {
		return nil, fmt.Errorf("write the state: %w", err)
	}
	fields["lineage"], fields["serial"] = lineage, fmt.Appendf(nil, "%d", over.Serial+1)
	return json.Marshal(fields)
}
