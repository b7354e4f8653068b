package queuetest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

// rows of queue.Meanings that a function of a database can raise as they are, or
// with zeros added.
func raisable() (codes []queue.Meaning) {
	for _, m := range queue.Meanings {
		if strings.HasPrefix(m.Code, "PGRST") || m.Code == "PT" || m.Code == "PT4" {
			continue // not the database's, or the beginning of several
		}
		whole := m.Code + strings.Repeat("0", 5-len(m.Code))
		if whole != m.Code && slices.ContainsFunc(queue.Meanings, func(o queue.Meaning) bool { return o.Code == whole }) {
			continue // has a row of its own
		}
		m.Code = whole
		codes = append(codes, m)
	}
	return append(codes, queue.Meaning{Code: "PT409", Class: queue.Refusal, Kind: queue.Refused}, queue.Meaning{Code: "PT503", Class: queue.Outage})
}

// answersHaveTheirKind has each code of the table come from the database, raised
// by the function that is called.
func answersHaveTheirKind(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	w.Exec(t, "CREATE TABLE public.raised (code text NOT NULL)")
	w.Exec(t, "INSERT INTO public.raised VALUES ('00000')")
	w.Exec(t, `CREATE OR REPLACE FUNCTION public.update_provision_status(p_token_hash text, p_claim_id uuid, p_status text, p_detail jsonb) RETURNS void
		LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
		BEGIN RAISE EXCEPTION USING ERRCODE = (SELECT code FROM public.raised), MESSAGE = 'raised by the test', DETAIL = 'a_reason'; END $$`)
	codes := raisable()
	// Outages last: while one lasts a call is one request.
	slices.SortStableFunc(codes, func(a, b queue.Meaning) int { return int(b.Class) - int(a.Class) })
	for _, m := range codes {
		w.Exec(t, "UPDATE public.raised SET code = $1", m.Code)
		err := q.Report(t.Context(), uuid.New(), provision.Report{Status: provision.Success})
		if e := wantKind(t, "Report() answered with "+m.Code, err, m.Kind); e.RetryAfter < 0 {
			t.Errorf("Report() answered with %s = %+v", m.Code, e)
		}
		if final := m.Class == queue.Refusal || m.Code == "PT413" || m.Code == "PT422"; queue.Final(err) != final {
			t.Errorf("Final(an answer with %s) = %v, want %v", m.Code, !final, final)
		}
	}
}

// outagesOfTheContract are ways in which the contract is not there to be asked.
// Nothing of it is the database's answer to a call.
func outagesOfTheContract(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	id := w.Deploy(t, "a")
	a := mustClaim(t, q)
	database := w.Text(t, "SELECT quote_ident(current_database())")
	// Which of the two a transport calls is its own affair.
	const first, second = "FUNCTION public.insert_provision_log", "FUNCTION public.append_provision_log"
	for _, tc := range []struct{ about, begin, end string }{
		{"the schema is away", "ALTER SCHEMA tendril RENAME TO tendril_away", "ALTER SCHEMA tendril_away RENAME TO tendril"},
		{"a table is away", "ALTER TABLE public.provision_logs RENAME TO away", "ALTER TABLE public.away RENAME TO provision_logs"},
		{"a column is away", "ALTER TABLE public.provision_logs RENAME log_chunk TO away", "ALTER TABLE public.provision_logs RENAME away TO log_chunk"},
		{"the function is away", "ALTER " + first + " RENAME TO away1; ALTER " + second + " RENAME TO away2",
			"ALTER FUNCTION public.away1 RENAME TO insert_provision_log; ALTER FUNCTION public.away2 RENAME TO append_provision_log"},
		{"the right to call it is gone", "REVOKE EXECUTE ON " + first + " FROM anon, tendril_agent; REVOKE EXECUTE ON " + second + " FROM anon, tendril_agent",
			"GRANT EXECUTE ON " + first + " TO anon, tendril_agent; GRANT EXECUTE ON " + second + " TO anon, tendril_agent"},
		{"the schema may not be used", "REVOKE USAGE ON SCHEMA public FROM PUBLIC, anon, authenticated, tendril_agent", "GRANT USAGE ON SCHEMA public TO PUBLIC, anon, authenticated, tendril_agent"},
		{"the database takes no writes", "ALTER DATABASE " + database + " SET default_transaction_read_only = on", "ALTER DATABASE " + database + " RESET default_transaction_read_only"},
	} {
		w.Exec(t, "SET default_transaction_read_only = off")
		w.Exec(t, tc.begin)
		if strings.HasPrefix(tc.begin, "ALTER DATABASE") {
			w.reconnectOthers(t) // for it counts from their next session on
		}
		// A function that somebody looks for under another signature is found again
		// only when that is known: the gateway reads it as it needs it.
		_, err := q.AppendLog(t.Context(), a.ClaimID, 1, []provision.LogChunk{line(tc.about + "\n")})
		if kind := queue.KindOf(err); err == nil || queue.Final(err) || kind == queue.ContentRefused {
			t.Errorf("%s: AppendLog() = %v, of kind %d, want an outage", tc.about, err, kind)
		}
		w.Exec(t, tc.end)
	}
	w.reconnectOthers(t)
	next, err := q.AppendLog(t.Context(), a.ClaimID, 1, []provision.LogChunk{line("stored\n")})
	// Connections that were cut are noticed one by one, and the gateway reads which
	// functions there are once a second.
	for deadline := time.Now().Add(time.Minute); err != nil && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		next, err = q.AppendLog(t.Context(), a.ClaimID, 1, []provision.LogChunk{line("stored\n")})
	}
	if err != nil || next != 2 || w.Log(t, id) != "stored\n" {
		t.Errorf("AppendLog() afterwards = %d, %v, want 2", next, err)
	}
}

// reconnectOthers ends the sessions of others, so that they begin with what the
// database's settings are now.
func (w *World) reconnectOthers(t *testing.T) {
	t.Helper()
	w.Exec(t, "SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
}

// contentIsToldFromOutages: what the database can't take is told as that, by each
// transport, whatever status it has on the way.
func contentIsToldFromOutages(t *testing.T, w *World, open Open) {
	// A server with little stack takes less: what is too deep is up to it.
	w.Exec(t, "ALTER DATABASE "+w.Text(t, "SELECT quote_ident(current_database())")+" SET max_stack_depth = '200kB'")
	q := registered(t, w, open, "one")
	w.Deploy(t, "a")
	a := mustClaim(t, q)
	deep := provision.Detail{Outputs: map[string]provision.Output{"deep": {Value: []byte(strings.Repeat("[", 9000) + strings.Repeat("]", 9000))}}}
	vast := provision.Detail{Outputs: map[string]provision.Output{"vast": {Value: []byte("1e500")}}}
	odd := provision.Detail{Outputs: map[string]provision.Output{"odd": {Value: []byte(`"\ud800"`)}}}
	for about, detail := range map[string]provision.Detail{"nested too deep": deep, "a vast number": vast, "half a character": odd} {
		err := q.Report(t.Context(), a.ClaimID, provision.Report{Status: provision.Processing, Detail: detail})
		_ = wantKind(t, fmt.Sprintf("Report(%s)", about), err, queue.ContentRefused)
	}
	// A key of an index that is too long, as an index that a DBA has added may have one.
	w.Exec(t, "CREATE INDEX ON public.provision_events ((detail ->> 'address'))")
	err := q.Report(t.Context(), a.ClaimID, provision.Report{Status: provision.Processing, Detail: provision.Detail{
		Events: []provision.Event{{Kind: "resource_started", Address: incompressible(9000)}}}})
	_ = wantKind(t, "Report(a key that is too long)", err, queue.ContentRefused)
}

// incompressible is a text of so many characters that no index makes smaller.
func incompressible(n int) string {
	var text strings.Builder
	for text.Len() < n {
		text.WriteString(strings.ReplaceAll(uuid.NewString(), "-", ""))
	}
	return text.String()[:n]
}

// longAddressesStayTwo: a key beyond the limit is stored with a digest, by Go and by
// SQL alike, also for an agent that does not bring its reports within the limits.
func longAddressesStayTwo(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	w.Deploy(t, "a")
	a := mustClaim(t, q)
	begin := strings.Repeat("🌱", 10) + incompressible(5000)
	mustReport(t, q, a.ClaimID, provision.Processing, provision.Detail{Resources: []provision.Resource{
		{Address: begin + ".a", Type: "t"}, {Address: begin + ".b", Type: "t"}, {Address: "short", Type: "t"},
	}})
	for _, address := range []string{begin + ".a", begin + ".b", "short"} {
		if got := w.Text(t, "SELECT count(*)::text FROM public.resources WHERE address = $1", provision.Key(address)); got != "1" {
			t.Errorf("resources with the key of …%s = %s, want 1", address[max(0, len(address)-4):], got)
		}
	}
}

// setAsideIsSaid: what an agent has left out stands in the log, once.
func setAsideIsSaid(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	id := w.Deploy(t, "a")
	a := mustClaim(t, q)
	for range 2 { // the second is a repeat
		mustReport(t, q, a.ClaimID, provision.Processing, provision.Detail{Number: 1, Stage: provision.StageCheckout, SetAside: "The outputs are left out."})
	}
	for range 2 {
		mustReport(t, q, a.ClaimID, provision.Failed, provision.Detail{Number: 2, ErrorCode: provision.CodeApplyFailed, SetAside: "The resources are left out."})
	}
	if got := w.Log(t, id); strings.Count(got, "The outputs are left out.") != 1 || strings.Count(got, "The resources are left out.") != 1 {
		t.Errorf("log = %q, want each note once", got)
	}
}

// fittedReportsAreTaken: what Detail.Fit makes of an odd report the database takes.
func fittedReportsAreTaken(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	w.Deploy(t, "a")
	a := mustClaim(t, q)
	w.Exec(t, "CREATE INDEX ON public.provision_events ((detail ->> 'address'))")
	percent := -7
	values := []string{"1e500", "-1e-500", "0e-16383", `"\ud800"`, `{"\udfff": [1e399, null]}`, strings.Repeat("[", 9000) + strings.Repeat("]", 9000)}
	d := provision.Detail{Percent: &percent, Outputs: map[string]provision.Output{}, Plan: &provision.PlanSummary{}}
	for n, value := range values {
		d.Outputs[fmt.Sprint("o", n)] = provision.Output{Type: []byte(value), Value: []byte(value)}
		d.Plan.Resources = append(d.Plan.Resources, provision.PlannedChange{Address: incompressible(4000), Attributes: []provision.AttributeChange{{Path: "a", Before: []byte(value)}}})
		d.Variables = append(d.Variables, provision.Variable{Name: fmt.Sprint("v", n), TypeJSON: []byte(value), Default: []byte(value)})
	}
	for _, year := range []int{0, 1, 9999} {
		at := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)
		d.Events = append(d.Events, provision.Event{Kind: "resource_started", Address: incompressible(9000), At: at})
		d.Running = append(d.Running, provision.Running{Address: incompressible(9000), Since: at})
	}
	mustReport(t, q, a.ClaimID, provision.Processing, d.Fit(time.Now()))
}

// stateBlob describes a state of that version.
func stateBlob(number int64, data []byte) queue.Blob {
	sum := sha256.Sum256(data)
	return queue.Blob{Kind: queue.BlobState, Number: number, Digest: hex.EncodeToString(sum[:]), Meta: json.RawMessage(`{"serial": 7, "mac": "x"}`)}
}

// noise is so many bytes that cannot be compressed, as what is sealed cannot.
func noise(n int) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	return data
}

func blobComesBack(t *testing.T, w *World, open Open) {
	one, two := registered(t, w, open, "one"), registered(t, w, open, "two")
	w.Deploy(t, "a")
	a := mustClaim(t, one)
	if _, _, err := one.GetBlob(t.Context(), a.ClaimID, queue.BlobState, 0); !errors.Is(err, queue.ErrNoBlob) {
		t.Fatalf("GetBlob() before there is one = %v, want ErrNoBlob", err)
	}
	// One byte more than two parts.
	large := noise(2*queue.BlobPart + 1)
	for _, data := range [][]byte{[]byte("small"), large, large} { // the last one is a repeat
		number := int64(1)
		if len(data) == len(large) {
			number = 2
		}
		if err := one.PutBlob(t.Context(), a.ClaimID, stateBlob(number, data), data); err != nil {
			t.Fatalf("PutBlob(%d bytes) = %v, want nil", len(data), err)
		}
	}
	mustReport(t, one, a.ClaimID, provision.Success, provision.Detail{})
	w.Deploy(t, "a")
	a = mustClaim(t, two)
	want := stateBlob(2, large)
	for _, number := range []int64{0, want.Number} {
		blob, data, err := two.GetBlob(t.Context(), a.ClaimID, queue.BlobState, number)
		if err != nil || !bytes.Equal(data, large) || blob.Kind != want.Kind || blob.Number != want.Number || blob.Digest != want.Digest || !sameJSON(blob.Meta, want.Meta) {
			t.Errorf("GetBlob(%d) = %+v, %d bytes, %v, want %+v and %d bytes", number, blob, len(data), err, want, len(large))
		}
	}
	if _, _, err := two.GetBlob(t.Context(), a.ClaimID, queue.BlobState, want.Number+1); !errors.Is(err, queue.ErrNoBlob) {
		t.Errorf("GetBlob() of a version that is not there = %v, want ErrNoBlob", err)
	}
}

func sameJSON(a, b json.RawMessage) bool {
	var one, other any
	return json.Unmarshal(a, &one) == nil && json.Unmarshal(b, &other) == nil && reflect.DeepEqual(one, other)
}

func blobIsFencedByItsClaim(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	w.Deploy(t, "a")
	a := mustClaim(t, q)
	mustReport(t, q, a.ClaimID, provision.Success, provision.Detail{})
	for _, claim := range []uuid.UUID{a.ClaimID, uuid.New()} {
		err := q.PutBlob(t.Context(), claim, stateBlob(1, []byte("late")), []byte("late"))
		_ = wantKind(t, "PutBlob() under a claim that is over", err, queue.ClaimLost)
		_, _, err = q.GetBlob(t.Context(), claim, queue.BlobState, 0)
		_ = wantKind(t, "GetBlob() under a claim that is over", err, queue.ClaimLost)
	}
}

func damagedBlobIsTold(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	w.Deploy(t, "a")
	a := mustClaim(t, q)
	if err := q.PutBlob(t.Context(), a.ClaimID, stateBlob(1, []byte("a state")), []byte("a state")); err != nil {
		t.Fatalf("PutBlob() = %v, want nil", err)
	}
	_ = wantKind(t, "PutBlob() of another under its number", q.PutBlob(t.Context(), a.ClaimID, stateBlob(1, []byte("no state")), []byte("no state")), queue.Refused)
	w.Exec(t, "UPDATE tendril.blob_parts SET data = 'a spate'")
	_, _, err := q.GetBlob(t.Context(), a.ClaimID, queue.BlobState, 0)
	_ = wantKind(t, "GetBlob() of what somebody has changed", err, queue.Refused)
}
