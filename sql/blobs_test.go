package sql_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"
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

// What people bring is for the claim that names it, and what was read for them
// is theirs; both go by themselves.
func TestUploadsAndResults(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	a, theirs := w.newAgent(t, "one"), w.foreignAgent(t)
	upload := func(user uuid.UUID, cluster, id uuid.UUID, part, parts int, data string) (made uuid.UUID, err error) {
		err = w.try(t, "authenticated", user, func(tx pgx.Tx) error {
			return tx.QueryRow(t.Context(), "SELECT public.upload_blob($1, $2, $3, $4, $5)", cluster, part, parts, base64.StdEncoding.EncodeToString([]byte(data)), id).Scan(&made)
		})
		return made, err
	}
	id := uuid.New()
	for _, part := range []string{"one ", "one ", "two"} {
		if made, err := upload(w.adminID, w.cluster, id, map[string]int{"one ": 1, "two": 2}[part], 2, part); err != nil || made != id {
			t.Fatalf("upload_blob = %v, %v, want %v", made, err, id)
		}
	}
	another := uuid.New()
	mustExec(t, w.conn, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'admin')", w.org, another)
	_, err := upload(another, w.cluster, id, 1, 2, "other")
	wantRefusal(t, err, "PT409", "upload_taken")
	_, err = upload(w.operator, w.cluster, uuid.New(), 1, 1, "x")
	wantRefusal(t, err, "PT404", "cluster_not_found")
	_, err = upload(w.stranger, w.cluster, uuid.New(), 1, 1, "x")
	wantRefusal(t, err, "PT404", "cluster_not_found")
	if got := one[string](t, w.conn, "SELECT detail ->> 'digest' FROM public.audit_events WHERE action = 'upload_blob'"); got != digestOf([]byte("one two")) {
		t.Errorf("audited digest = %q, want that of the whole", got)
	}

	pushed := func(cluster uuid.UUID) uuid.UUID {
		return one[uuid.UUID](t, w.conn, "INSERT INTO public.provisions (cluster_id, operation, config_snapshot) VALUES ($1, 'state', $2) RETURNING id",
			cluster, snapshotWith("named", fmt.Sprintf(`"state": {"command": "push", "upload": %q}`, id)))
	}
	named := pushed(w.cluster)
	claim, _ := a.mustClaim(t)
	a.wantBlob(t, claim, "upload", 0, "one ", 0)
	a.mustPut(t, claim, "result", 0, "for who asked")
	w.deploy(t, w.operator, snapshot("another"))
	other, _ := a.mustClaim(t)
	a.wantBlob(t, other, "upload", 0, "", 0)
	pushed(theirs.w.cluster)
	foreign, _ := theirs.mustClaim(t)
	theirs.wantBlob(t, foreign, "upload", 0, "", 0)
	theirs.mustReport(t, foreign, "SUCCESS", `{}`)

	const past = "UPDATE tendril.blobs SET expires_at = clock_timestamp() - interval '1 second' WHERE expires_at IS NOT NULL"
	a.wantBlob(t, claim, "upload", 0, "one ", 0) // another organisation's operation has not taken it
	mustExec(t, w.conn, past)
	a.wantBlob(t, claim, "upload", 0, "", 0)
	_, err = person[json.RawMessage](t, w, w.adminID, "SELECT public.fetch_result($1)", named)
	wantRefusal(t, err, "PT404", "result_not_found")
	if got := one[int](t, w.conn, "SELECT tendril.expire_blobs()"); got != 2 {
		t.Errorf("expired = %d, want the upload and the result", got)
	}
}

// Uploads do not pile up: one goes when it was taken, and only so many wait.
func TestUploadsAreFew(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	a := w.newAgent(t, "one")
	mustExec(t, w.conn, "UPDATE tendril.settings SET upload_limit = 2")
	upload := func() (uuid.UUID, error) {
		return person[uuid.UUID](t, w, w.adminID, "SELECT public.upload_blob($1, 1, 1, $2)", w.cluster, aResult)
	}
	push := func(upload uuid.UUID, status string) {
		mustAs[uuid.UUID](t, w, w.adminID, "INSERT INTO public.provisions (cluster_id, operation, config_snapshot) VALUES ($1, 'state', $2) RETURNING id",
			w.cluster, snapshotWith("a", fmt.Sprintf(`"state": {"command": "push", "upload": %q}`, upload)))
		a.run(t, status, `{}`)
	}
	first, err := upload()
	if err != nil {
		t.Fatal(err)
	}
	push(first, "FAILED") // it may be tried again
	if _, err := upload(); err != nil {
		t.Fatal(err)
	}
	_, err = upload()
	if got := wantRefusal(t, err, "PT429", "uploads_full"); !strings.Contains(got, "2 uploads") {
		t.Errorf("refusal = %q, want it to say how many there are", got)
	}
	push(first, "SUCCESS")
	if _, err := upload(); err != nil {
		t.Errorf("upload after one was taken = %v, want nil", err)
	}
	if got := one[bool](t, w.conn, "SELECT EXISTS (SELECT FROM tendril.blobs WHERE id = $1)", first); got {
		t.Error("the upload that was taken is there, want it gone")
	}
}

// A state holds every secret and says what belongs to whom: an operator may see
// the addresses in it, and no more. What was read is for who asked.
func TestStatesAreForAdmins(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	a := w.newAgent(t, "one")
	ask := func(user uuid.UUID, operation, members string) (uuid.UUID, error) {
		return person[uuid.UUID](t, w, user, "INSERT INTO public.provisions (cluster_id, operation, config_snapshot) VALUES ($1, $2, $3) RETURNING id",
			w.cluster, operation, snapshotWith("a", members))
	}
	for what, members := range map[string]string{
		"unlock": `"lock_id": "an-id"`, "pull": `"state": {"command": "pull"}`, "push": `"state": {"command": "push", "upload": "` + uuid.NewString() + `"}`,
		"rm": `"state": {"command": "rm", "args": ["a.b"]}`, "mv": `"state": {"command": "mv", "args": ["a.b", "a.c"]}`, "import": `"state": {"command": "import", "args": ["a.b", "id"]}`,
		"rollback": `"state": {"command": "rollback", "version": 1}`, "adopt": `"state": {"command": "adopt"}`,
	} {
		operation, action := "state", "state_"+what
		if what == "unlock" {
			operation, action = what, "unlock_state"
		}
		_, err := ask(w.operator, operation, members)
		wantRefusal(t, err, "PT403", "not_an_admin")
		for _, user := range []uuid.UUID{w.viewer, w.stranger} {
			_, err := ask(user, operation, members)
			wantRefusal(t, err, "PT404", "cluster_not_found")
		}
		id, err := ask(w.adminID, operation, members)
		if err != nil {
			t.Fatalf("%s by an admin: %v", what, err)
		}
		if got := w.audited(t, id); !strings.HasPrefix(got, "admin "+action+" ") {
			t.Errorf("audited = %q, want that the admin asked for %s", got, action)
		}
		a.run(t, "FAILED", `{"error_code": "internal"}`)
		_, err = person[uuid.UUID](t, w, w.operator, "SELECT public.retry_provision($1)", id)
		wantRefusal(t, err, "PT403", "not_an_admin")
	}

	id, err := ask(w.operator, "state", `"state": {"command": "list"}`)
	if err != nil {
		t.Fatalf("list by an operator: %v", err)
	}
	claim, _ := a.mustClaim(t)
	a.mustPut(t, claim, "result", 0, "addresses")
	colleague := uuid.New()
	mustExec(t, w.conn, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'operator')", w.org, colleague)
	const fetch = "SELECT convert_from(decode(public.fetch_result($1) ->> 'data', 'base64'), 'UTF8')"
	for _, user := range []uuid.UUID{w.operator, w.adminID} {
		if got := mustAs[string](t, w, user, fetch, id); got != "addresses" {
			t.Errorf("fetch_result = %q, want what was put", got)
		}
	}
	_, err = person[string](t, w, colleague, fetch, id)
	wantRefusal(t, err, "PT403", "not_yours")
	for _, user := range []uuid.UUID{w.viewer, w.stranger} {
		_, err = person[string](t, w, user, fetch, id)
		wantRefusal(t, err, "PT404", "provision_not_found")
	}
	if got := one[int](t, w.conn, "SELECT count(*) FROM public.audit_events WHERE action = 'fetch_result'"); got != 2 {
		t.Errorf("audited reads = %d, want 2", got)
	}
}

// What has expired is removed in portions, for an agent that stores a state waits
// for one.
func TestExpiryIsBounded(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	mustExec(t, w.conn, `INSERT INTO tendril.blobs (kind, cluster_id, parts, expires_at)
		SELECT 'upload', $1, p.parts, now() - interval '1 hour' + p.n * interval '1 second' FROM unnest(ARRAY[100, 100, 1, 513, 1, 1]) WITH ORDINALITY p (parts, n)`, w.cluster)
	var got []int
	for range 4 {
		got = append(got, one[int](t, w.conn, "SELECT tendril.expire_blobs()"))
	}
	if want := []int{2, 2, 2, 0}; !slices.Equal(got, want) {
		t.Errorf("removed at a time = %v, want %v", got, want)
	}
}
