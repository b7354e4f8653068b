package sql_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// put sends a blob in so many parts.
func (a *agent) put(t *testing.T, claim uuid.UUID, kind string, number int64, data []byte, parts int) error {
	t.Helper()
	for part := 1; part <= parts; part++ {
		if err := a.putPart(t, claim, kind, number, data, part, parts); err != nil {
			return err
		}
	}
	return nil
}

func (a *agent) putPart(t *testing.T, claim uuid.UUID, kind string, number int64, data []byte, part, parts int) error {
	t.Helper()
	size := (len(data) + parts - 1) / parts
	piece := data[(part-1)*size : min(part*size, len(data))]
	var void any
	return a.call(t, &void, "SELECT public.put_blob($1, $2, $3, $4, $5, $6, $7, $8, $9)::text", a.w.tokenHash, claim, kind, number, part, parts,
		digestOf(data), fmt.Sprintf(`{"serial": %d}`, 100+number), base64.StdEncoding.EncodeToString(piece))
}

// get answers the first part of a blob; nil where there is none.
func (a *agent) get(t *testing.T, claim uuid.UUID, kind string, number int64) (data []byte, version int64, err error) {
	t.Helper()
	var reply json.RawMessage
	if err := a.call(t, &reply, "SELECT public.get_blob($1, $2, $3, $4, 1)", a.w.tokenHash, claim, kind, number); err != nil {
		return nil, 0, err
	}
	var part struct {
		Parts  int
		Number int64
		Data   []byte
	}
	if err := json.Unmarshal(reply, &part); err != nil {
		t.Fatal(err)
	}
	return part.Data, part.Number, nil
}

func (a *agent) mustPut(t *testing.T, claim uuid.UUID, kind string, number int64, data string) {
	t.Helper()
	if err := a.put(t, claim, kind, number, []byte(data), 1); err != nil {
		t.Fatalf("put_blob(%s %d): %v", kind, number, err)
	}
}

// wantBlob fails the test unless the blob is that one, "" for none.
func (a *agent) wantBlob(t *testing.T, claim uuid.UUID, kind string, number int64, want string, version int64) {
	t.Helper()
	data, got, err := a.get(t, claim, kind, number)
	if err != nil || string(data) != want || got != version {
		t.Errorf("get_blob(%s %d) = %q, version %d, %v, want %q, version %d", kind, number, data, got, err, want, version)
	}
}

// runOnce claims and runs what is deployed to a workspace, to its end.
func (w *world) runOnce(t *testing.T, a *agent, workspace string, do func(claim uuid.UUID)) {
	t.Helper()
	w.deploy(t, w.operator, snapshot(workspace))
	claim, _ := a.mustClaim(t)
	do(claim)
	a.mustReport(t, claim, "SUCCESS", `{}`)
}

// A state is stored under a claim alone, and once; of a run the last is kept, and
// of runs the last twenty. Its workspace is at home on no agent then.
func TestStates(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	first, second := w.newAgent(t, "one"), w.newAgent(t, "two")
	mustExec(t, w.conn, "UPDATE tendril.settings SET state_history = 3 WHERE only_row")
	w.runOnce(t, first, "w", func(claim uuid.UUID) { first.mustReport(t, claim, "PROCESSING", `{"local_state": true}`) })
	w.runOnce(t, first, "w", func(claim uuid.UUID) {
		first.wantBlob(t, claim, "state", 0, "", 0)
		first.mustPut(t, claim, "state", 1, "first")
		first.mustPut(t, claim, "state", 3, "third") // the second was overwritten before it was sent
		first.mustPut(t, claim, "state", 3, "third")
		first.mustPut(t, claim, "state", 1, "first") // a repeat that comes late
		wantRefusal(t, first.put(t, claim, "state", 3, []byte("other"), 1), "PT409", "state_moved")
		first.wantBlob(t, claim, "state", 0, "third", 3)
		first.wantBlob(t, claim, "state", 1, "", 0)
	})
	for n := int64(4); n < 8; n++ {
		w.runOnce(t, second, "w", func(claim uuid.UUID) { second.mustPut(t, claim, "state", n, fmt.Sprint("run ", n)) })
	}
	w.runOnce(t, second, "w", func(claim uuid.UUID) {
		second.wantBlob(t, claim, "state", 0, "run 7", 7)
		second.wantBlob(t, claim, "state", 5, "run 5", 5)
		second.wantBlob(t, claim, "state", 4, "", 0)
		wantRefusal(t, second.put(t, claim, "state", 7, []byte("run 7 again"), 1), "PT409", "state_moved")
		wantRefusal(t, second.put(t, claim, "state", 2, []byte("second"), 1), "PT409", "state_moved")
		// Nor may it begin with an empty file beside it.
		wantRefusal(t, second.report(t, claim, "PROCESSING", `{"local_state": true}`), "PT409", "workspace_managed")
	})
	const row = "SELECT concat_ws(' ', state_version, state_serial, state_at IS NOT NULL, home_instance, (SELECT status FROM public.provisions WHERE id = state_provision)) FROM public.workspaces"
	if got, want := one[string](t, w.conn, row), "7 107 t SUCCESS"; got != want {
		t.Errorf("workspace = %q, want %q", got, want)
	}
	var versions string
	w.as(t, "authenticated", w.viewer, func(tx pgx.Tx) error {
		return tx.QueryRow(t.Context(), "SELECT string_agg(concat_ws('/', version, serial, bytes, stored_at IS NOT NULL, provision_id IS NOT NULL), ' ') FROM public.state_versions((SELECT id FROM public.workspaces))").Scan(&versions)
	})
	if want := "7/107/5/t/t 6/106/5/t/t 5/105/5/t/t"; versions != want {
		t.Errorf("state_versions() = %q, want %q", versions, want)
	}
}

// The claim is the lock: who has lost it stores nothing, unless its apply had
// begun, and then only until somebody ends the hold.
func TestStateIsFencedByTheClaim(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	a := w.newAgent(t, "one")
	var ended uuid.UUID
	w.runOnce(t, a, "ended", func(claim uuid.UUID) { ended = claim })
	wantRefusal(t, a.put(t, ended, "state", 1, []byte("late"), 1), "PT409", "claim_lost")
	_, _, err := a.get(t, ended, "state", 0)
	wantRefusal(t, err, "PT409", "claim_lost")

	w.deploy(t, w.operator, snapshot("planning"))
	planning, _ := a.mustClaim(t)
	w.deploy(t, w.operator, snapshot("applying"))
	held, _ := a.mustClaim(t)
	a.mustReport(t, held, "PROCESSING", applying)
	for _, claim := range []uuid.UUID{planning, held} {
		w.expire(t, claim)
	}
	w.reap(t)
	wantRefusal(t, a.put(t, planning, "state", 1, []byte("late"), 1), "PT409", "claim_lost")
	a.mustPut(t, held, "state", 1, "late")
	a.wantBlob(t, held, "state", 0, "late", 1)
	wantRefusal(t, a.put(t, held, "result", 0, []byte("late"), 1), "PT409", "claim_lost")
	w.as(t, "authenticated", w.adminID, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "SELECT public.release_workspace((SELECT id FROM public.workspaces WHERE name = 'applying'))")
		return err
	})
	wantRefusal(t, a.put(t, held, "state", 2, []byte("later"), 1), "PT409", "claim_lost")

	theirs := w.foreignAgent(t)
	w.deploy(t, w.operator, snapshot("running"))
	running, _ := a.mustClaim(t)
	wantRefusal(t, theirs.put(t, running, "state", 1, []byte("forged"), 1), "PT409", "claim_lost")
	_, _, err = theirs.get(t, running, "state", 0)
	wantRefusal(t, err, "PT409", "claim_lost")
}

// Somebody who removes the newest state has the workspace begin with an older
// one, or anew: both would make what exists a second time.
func TestStateRemovedByHand(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	a := w.newAgent(t, "one")
	for n := range int64(2) {
		w.runOnce(t, a, "w", func(claim uuid.UUID) { a.mustPut(t, claim, "state", n+1, "a state") })
	}
	mustExec(t, w.conn, "DELETE FROM tendril.blobs WHERE number = 2")
	w.deploy(t, w.operator, snapshot("w"))
	claim, _ := a.mustClaim(t)
	_, _, err := a.get(t, claim, "state", 0)
	wantRefusal(t, err, "PT409", "state_missing")
}

// A blob counts when all its parts are there; parts may come twice.
func TestBlobParts(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	a := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("w"))
	claim, _ := a.mustClaim(t)
	large := bytes.Repeat([]byte("0123456789"), 100_000) // two parts
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	wantRefusal(t, a.putPart(t, claim, "state", 1, large, 2, 2), "PT409", "blob_incomplete")
	must(a.putPart(t, claim, "state", 1, large, 1, 3))
	wantRefusal(t, a.putPart(t, claim, "state", 1, large, 3, 3), "PT409", "blob_incomplete")
	a.wantBlob(t, claim, "state", 0, "", 0)
	must(a.putPart(t, claim, "state", 1, large, 1, 2)) // begun anew
	must(a.putPart(t, claim, "state", 1, large, 1, 2))
	must(a.putPart(t, claim, "state", 1, large, 2, 2))
	must(a.putPart(t, claim, "state", 1, large, 1, 2)) // late
	a.wantBlob(t, claim, "state", 0, string(large[:500_000]), 1)
	if got := one[string](t, w.conn, "SELECT string_agg(kind || parts || bytes || (expires_at IS NULL), ' ') FROM tendril.blobs"); got != "state21000000true" {
		t.Errorf("blobs = %q, want one state of two parts that stays", got)
	}
}

// What is no blob, or too large for one.
func TestBadBlobs(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	a := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("w"))
	claim, _ := a.mustClaim(t)
	put := func(kind, number, part, parts, digest, meta, data any) error {
		var void any
		return a.call(t, &void, "SELECT public.put_blob($1, $2, $3, $4, $5, $6, $7, $8, $9)::text", w.tokenHash, claim, kind, number, part, parts, digest, meta, data)
	}
	const serial = `{"serial": 1}`
	sealed, good := aResult, aResultDigest
	for name, test := range map[string]struct {
		err    error
		reason string
	}{
		"no kind":           {put(nil, 1, 1, 1, good, serial, sealed), "PT422 bad_blob"},
		"another kind":      {put("upload", 1, 1, 1, good, serial, sealed), "PT422 bad_blob"},
		"no digest":         {put("state", 1, 1, 1, nil, serial, sealed), "PT422 bad_blob"},
		"another digest":    {put("state", 1, 1, 1, strings.Repeat("0", 64), serial, sealed), "PT422 bad_blob"},
		"no version":        {put("state", nil, 1, 1, good, serial, sealed), "PT422 bad_blob"},
		"no later version":  {put("state", int64(math.MaxInt64), 1, 1, good, serial, sealed), "PT422 bad_blob"},
		"no serial":         {put("state", 1, 1, 1, good, `{}`, sealed), "PT422 bad_blob"},
		"an odd serial":     {put("state", 1, 1, 1, good, `{"serial": 1.5}`, sealed), "PT422 bad_blob"},
		"meta no object":    {put("plan", 0, 1, 1, good, `[]`, sealed), "PT422 bad_blob"},
		"meta large":        {put("plan", 0, 1, 1, good, fmt.Sprintf(`{"x": %q}`, strings.Repeat("x", 4100)), sealed), "PT422 bad_blob"},
		"meta vast":         {put("plan", 0, 1, 1, good, `{"x": 1e131071}`, sealed), "PT422 bad_blob"},
		"no part":           {put("plan", 0, nil, 1, good, nil, sealed), "PT422 bad_blob"},
		"part 0":            {put("plan", 0, 0, 1, good, nil, sealed), "PT422 bad_blob"},
		"part beyond":       {put("plan", 0, 2, 1, good, nil, sealed), "PT422 bad_blob"},
		"no data":           {put("plan", 0, 1, 1, good, nil, nil), "PT422 bad_blob"},
		"no base64":         {put("plan", 0, 1, 1, good, nil, "%"), "PT422 bad_blob"},
		"a plan too large":  {put("plan", 0, 1, 17, good, nil, sealed), "PT413 blob_too_large"},
		"a state as well":   {put("state", 1, 1, 514, good, serial, sealed), "PT413 blob_too_large"},
		"a part too large":  {put("plan", 0, 1, 2, good, nil, base64.StdEncoding.EncodeToString(make([]byte, 524_289))), "PT413 blob_too_large"},
		"a part very large": {put("plan", 0, 1, 2, good, nil, strings.Repeat("AAAA", 300_000)), "PT413 blob_too_large"},
	} {
		if got := answerOf(test.err); got != test.reason {
			t.Errorf("put_blob of %s = %s (%v), want %s", name, got, test.err, test.reason)
		}
	}
	if got := one[int](t, w.conn, "SELECT count(*) FROM tendril.blobs"); got != 0 {
		t.Errorf("blobs = %d, want 0", got)
	}
}

// A plan is there until its provision has ended, and no other takes the place of
// one that was approved.
func TestPlanBlobs(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	a := w.newAgent(t, "one")
	id := w.deploy(t, w.operator, snapshot("w"))
	claim, _ := a.mustClaim(t)
	a.mustPut(t, claim, "plan", 0, "one plan")
	a.mustPut(t, claim, "plan", 0, "another plan")
	digest := digestOf([]byte("another plan"))
	stored := func() string {
		return one[string](t, w.conn, "SELECT concat_ws(' ', tendril.plan_bundle_stored($1, $2), tendril.plan_bundle_stored($1, $3), (SELECT count(*) FROM tendril.blobs))",
			id, digest, digestOf([]byte("one plan")))
	}
	if got := stored(); got != "t f 1" {
		t.Errorf("stored = %q, want the second plan alone", got)
	}
	mustExec(t, w.conn, "SELECT tendril.await_approval($1, $2)", claim, digest)
	wantRefusal(t, a.put(t, claim, "plan", 0, []byte("a third"), 1), "PT409", "claim_lost")
	w.as(t, "authenticated", w.operator, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "SELECT public.approve_provision($1, $2)", id, digest)
		return err
	})
	claim, _ = a.mustClaim(t)
	a.wantBlob(t, claim, "plan", 0, "another plan", 0)
	wantRefusal(t, a.put(t, claim, "plan", 0, []byte("a third"), 1), "PT409", "plan_approved")
	a.mustReport(t, claim, "FAILED", `{"error_code": "plan_stale"}`)
	if got := stored(); got != "f f 0" {
		t.Errorf("stored after the end = %q, want nothing", got)
	}
}
