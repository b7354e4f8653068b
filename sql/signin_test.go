package sql_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// signIn is what the control plane says of somebody who comes from an issuer.
const signIn = "SELECT tendril.sign_in('https://issuer.example', $1, $2, $3, $4, 'first@example.com', NULL)"

// What is shown counts until its time is over, it is not used for long, or it is
// ended; its use is written down once a minute.
func TestCredentialsEnd(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	find := func(kind, secret string) bool {
		t.Helper()
		return one[bool](t, w.conn, "SELECT EXISTS (SELECT FROM tendril.find_person($1, sha256(convert_to($2, 'UTF8'))) WHERE user_id = $3)", kind, secret, w.viewer)
	}
	add := func(kind, secret string) {
		t.Helper()
		mustExec(t, w.conn, "SELECT tendril.add_credential($1, $2, sha256(convert_to($3, 'UTF8')), '1 hour', 'a test')", kind, w.viewer, secret)
	}
	for _, kind := range []string{"session", "api_token"} {
		for what, change := range map[string]string{
			"over": "expires_at = clock_timestamp()", "revoked": "revoked_at = clock_timestamp()",
			"of another kind": "kind = CASE kind WHEN 'session' THEN 'api_token' ELSE 'session' END", "a link": "kind = 'link'",
		} {
			secret := kind + what
			if add(kind, secret); !find(kind, secret) {
				t.Errorf("a %s is not found", kind)
			}
			if mustExec(t, w.conn, "UPDATE tendril.credentials SET "+change+" WHERE digest = sha256(convert_to($1, 'UTF8'))", secret); find(kind, secret) {
				t.Errorf("a %s that is %s is found", kind, what)
			}
		}
	}
	add("session", "idle")
	if mustExec(t, w.conn, "UPDATE tendril.credentials SET last_used_at = clock_timestamp() - interval '8 days'"); find("session", "idle") {
		t.Error("a session that was not used for 8 days is found")
	}
	add("api_token", "used")
	used := func() string {
		t.Helper()
		find("api_token", "used")
		return one[string](t, w.conn, "SELECT last_used_at::text FROM tendril.credentials WHERE digest = sha256('used')")
	}
	first := used()
	if second := used(); second != first {
		t.Errorf("last used = %s, want %s: once a minute is enough", second, first)
	}
	mustExec(t, w.conn, "UPDATE tendril.credentials SET last_used_at = last_used_at - interval '61 seconds'")
	if later := used(); later < first {
		t.Errorf("last used after a minute = %s, want it to be written", later)
	}
	// What ended long ago goes.
	mustExec(t, w.conn, "UPDATE tendril.credentials SET revoked_at = clock_timestamp() - interval '31 days'")
	add("session", "new")
	mustExec(t, w.conn, "SELECT tendril.expire()")
	if got := one[int](t, w.conn, "SELECT count(*) FROM tendril.credentials"); got != 1 {
		t.Errorf("credentials = %d, want the new one", got)
	}
}

// Of many at once who use one link, one is let in.
func TestALinkIsUsedOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrated)
	w := newWorld(t, db.Conn(t))
	mustExec(t, w.conn, "SELECT tendril.add_credential('link', $1, sha256('link'), '1 hour', '')", w.viewer)
	let := make([]int, 8)
	var all sync.WaitGroup
	for i := range let {
		conn := db.Conn(t)
		all.Go(func() {
			_ = conn.QueryRow(t.Context(), "SELECT count(user_id) FROM tendril.redeem('link', sha256('link'))").Scan(&let[i]) // 0 on an error: then no one is let in
		})
	}
	all.Wait()
	sum := 0
	for _, n := range let {
		sum += n
	}
	if sum != 1 {
		t.Errorf("%d were let in by one link, want 1", sum)
	}
	mustExec(t, w.conn, "SELECT tendril.add_credential('link', $1, sha256('old'), '-1 second', '')", w.viewer)
	if got := one[*uuid.UUID](t, w.conn, "SELECT user_id FROM tendril.redeem('link', sha256('old'))"); got != nil {
		t.Error("a link that is too old lets somebody in")
	}
}

// Who comes for the first time by several ways at once is one person, and of two
// who are meant to be the first admin one is.
func TestSignInAtOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrated)
	conn := db.Conn(t)
	found := make([]uuid.UUID, 8)
	var all sync.WaitGroup
	for i := range found {
		own := db.Conn(t)
		all.Go(func() {
			if err := own.QueryRow(t.Context(), signIn, fmt.Sprintf("subject %d", i%2), "Ada", "first@example.com", true).Scan(&found[i]); err != nil {
				t.Errorf("sign_in: %v", err)
			}
		})
	}
	all.Wait()
	for i, user := range found {
		if user != found[i%2] || user == uuid.Nil {
			t.Errorf("subject %d is %s and %s, want one person", i%2, found[i%2], user)
		}
	}
	if got := one[string](t, conn, "SELECT count(*) || ' ' || count(DISTINCT org_id) FROM public.org_members WHERE role = 'admin'"); got != "1 1" {
		t.Errorf("admins and organisations = %s, want one of each", got)
	}
	if got := one[int](t, conn, "SELECT count(*) FROM tendril.persons"); got != 2 {
		t.Errorf("persons = %d, want 2", got)
	}
}

// Names are those of the members, and of those who were: what they did is theirs.
func TestPeopleKeepTheirNames(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	ada := one[uuid.UUID](t, w.conn, signIn, "ada", "Ada", "Ada@Example.com", true)
	names := func() string {
		t.Helper()
		got, err := person[string](t, w, w.viewer, "SELECT coalesce(string_agg(name || ' ' || email, ', '), '') FROM public.people WHERE user_id = $1", ada)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := names(); got != "" {
		t.Errorf("the name of who is no member = %q, want none to be seen", got)
	}
	mustExec(t, w.conn, "SELECT public.set_member($1, $2, 'viewer')", w.org, ada)
	if got := names(); got != "Ada ada@example.com" {
		t.Errorf("the member's name = %q, want Ada's", got)
	}
	mustExec(t, w.conn, signIn, "ada", "Countess Ada", "", nil) // what is not said stays
	mustExec(t, w.conn, "SELECT public.remove_member($1, $2)", w.org, ada)
	if got := names(); got != "Countess Ada ada@example.com" {
		t.Errorf("the name of who was a member = %q, want the one she had last", got)
	}
	// An address that the issuer says without verifying takes the mark away.
	mustExec(t, w.conn, signIn, "ada", "Ada", "another@example.com", false)
	if one[bool](t, w.conn, "SELECT email_verified FROM tendril.persons WHERE user_id = $1", ada) {
		t.Error("another address is taken for verified")
	}
}

// An API token that has leaked ends when it is revoked: it makes no other.
func TestATokenMakesNoToken(t *testing.T) {
	t.Parallel()
	s := newScene(t, pgtest.New(t, migrated).Conn(t))
	create := func(claims string) error {
		return s.attempt(t, actor{role: "authenticated", claims: claims}, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), "SELECT * FROM public.create_api_token('ci')")
			return err
		})
	}
	if err := create(fmt.Sprintf(`{"sub": %q}`, s.operator)); err != nil {
		t.Errorf("create_api_token of a person = %v, want nil", err)
	}
	if err := create(fmt.Sprintf(`{"sub": %q, "credential": "api_token"}`, s.operator)); err == nil || !strings.Contains(err.Error(), "PT403") {
		t.Errorf("create_api_token by an API token = %v, want PT403", err)
	}
}
