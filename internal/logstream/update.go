package logstream

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
)

// Update appends a report in its place among the lines. With a final status
// the text still held goes before it; otherwise the possible start of a secret
// stays held, for half of it must not become readable because a report came
// in between. A detail larger than the database takes is not written: the error
// is then a *TooLargeError.
func (w *Writer) Update(report provision.Report) error {
	_, err := w.update(report, false)
	return err
}

// UpdateAck is Update with a question: the agent answers on the control pipe
// with the number returned once the database has accepted or refused the
// report. The caller waits for that answer.
func (w *Writer) UpdateAck(report provision.Report) (int64, error) {
	return w.update(report, true)
}

// TooLargeError says that a report was not written because the database would
// not take it. The Writer is none the worse for it: a shorter one may follow.
type TooLargeError struct {
	Bytes int // the report's detail, as the database measures it
	Limit int // provision.MaxDetail
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("report of %d bytes is larger than the database takes (%d)", e.Bytes, e.Limit)
}

// update appends a report; its error may be a *TooLargeError.
func (w *Writer) update(report provision.Report, ack bool) (int64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.bell()
	_ = w.settle() // kept in w.file.err
	if w.closed || w.ended {
		return 0, os.ErrClosed
	}
	report.Detail = w.secrets.maskDetail(report.Detail)
	if err := fits(report.Detail); err != nil {
		return 0, err
	}
	report.Detail.Number, report.Detail.SetAside = 0, "" // the Pump's to give
	if report.Status.EndsRun() {
		w.flush()
	}
	_ = w.confess() // the report may fit where the line did not
	if err := w.putUpdate(ack, report); err != nil {
		w.giveUp(err)
		return 0, err
	}
	w.updates++
	w.ended = report.Status.EndsRun()
	w.open = false // an update closes the chunk before it
	w.ring = true
	return w.updates, nil
}

// maxVital is how large an update may be, in bytes, for which the room that is
// set aside is given up: there must be enough for the end. A larger one waits
// for room as text does.
const maxVital = 32 << 10

// putUpdate writes the next update to the spool.
func (w *Writer) putUpdate(ack bool, report provision.Report) error {
	for began := time.Now(); ; {
		record, err := appendUpdate(nil, w.updates+1, ack, began, report) // another may have come in between
		if err != nil {
			return fmt.Errorf("encode report: %w", err)
		}
		vital := report.Status.EndsRun() || len(record) <= maxVital
		if err = w.file.append(record, vital); err == nil {
			return nil
		}
		if vital || !full(err) || !w.waitForRoom(began) {
			return err
		}
	}
}

// fits returns a *TooLargeError for a detail that would be too large with the
// number which the Pump gives it.
func fits(d provision.Detail) error {
	d.Number = math.MaxInt64
	encoded, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	if size := jsonbSize(encoded); size > provision.MaxDetail {
		return &TooLargeError{Bytes: size, Limit: provision.MaxDetail}
	}
	return nil
}

// jsonbSize returns at most how large JSON is as the database measures it:
// jsonb is printed with a space after each comma and colon.
func jsonbSize(encoded []byte) int {
	return len(encoded) + bytes.Count(encoded, []byte(",")) + bytes.Count(encoded, []byte(":"))
}
