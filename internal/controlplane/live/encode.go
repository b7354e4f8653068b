package live

import (
	"bytes"
	"encoding/json"
	"strconv"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// event is one event of an event stream: without an id when id is 0. JSON has no
// line breaks of its own, so it is one line of data.
func event(id int64, name string, data any) []byte {
	var b bytes.Buffer
	if id != 0 {
		b.WriteString("id: ")
		b.WriteString(strconv.FormatInt(id, 10))
		b.WriteByte('\n')
	}
	b.WriteString("event: ")
	b.WriteString(name)
	b.WriteString("\ndata: ")
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false) // it is no HTML, and would be a third longer
	_ = encoder.Encode(data)     // of our own types, which can be encoded; it ends the line
	b.WriteByte('\n')
	return b.Bytes()
}

func logFrame(row store.LogRow) []byte { return event(row.Seq, "log", row) }

func statusFrame(sight store.Sight) []byte { return event(0, "status", sight) }

// endFrame says that nothing follows: whoever follows needs not come back.
func endFrame(sight store.Sight) []byte {
	return event(0, "end", struct {
		Status  any   `json:"status"`
		LastSeq int64 `json:"last_seq"`
	}{sight.Status, sight.LastSeq})
}

// goneFrame says that the stream is over because its reader may not see the
// provision any more, or it is gone: the one answer for both.
var goneFrame = event(0, "gone", map[string]string{"reason": "provision_not_found", "message": "there is no such provision that you may see any more"})

// hintFrame says that a provision or a cluster has changed; the zero id: anything may have.
func hintFrame(id uuid.UUID) []byte {
	if id == uuid.Nil {
		return event(0, "changed", map[string]any{"provision": nil})
	}
	return event(0, "changed", map[string]any{"provision": id})
}
