package sql_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

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
	if got := one[int](t, w.conn, "SELECT removed FROM tendril.expire() WHERE what = 'tendril.blobs'"); got != 2 {
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
	if got := wantRefusal(t, err, "PT429", "uploads_full"); !strings.Contains(got, "2 waiting uploads") {
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
		"rollback": `"state": {"command": "rollback", "version": 1}`, "adopt": `"state": {"command": "adopt"}`, "reveal": `"state": {"command": "reveal", "args": ["machine.a"]}`,
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
