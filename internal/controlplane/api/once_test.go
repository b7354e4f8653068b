package api_test

import (
	"cmp"
	"strings"
	"sync"
	"testing"
)

const deployBody = `{"cluster": "prod", "config_snapshot": ` + snapshot + `}`

// However often it is sent, and how many at once, a request with a key makes one
// provision.
func TestRequestsWithAKeyAreCarriedOutOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const key = "Idempotency-Key: 7c9e6679"
	var all sync.WaitGroup
	var mu sync.Mutex
	numbers, statuses := map[string]int{}, map[int]int{}
	for range 20 {
		all.Go(func() {
			got := w.as(t, "operator", "POST", "/provisions", deployBody, key)
			mu.Lock()
			defer mu.Unlock()
			statuses[got.status]++
			if got.status == 202 {
				numbers[got.text("number")]++
			} else if got.text("reason") != "request_under_way" {
				t.Errorf("one of 20 at once = %d %s, want it done, or under way", got.status, got.body)
			}
		})
	}
	all.Wait()
	var count int
	if err := w.Conn.QueryRow(t.Context(), "SELECT count(*) FROM public.provisions").Scan(&count); err != nil {
		t.Fatal(err)
	}
	if count != 1 || len(numbers) != 1 || statuses[202]+statuses[409] != 20 {
		t.Errorf("20 requests at once made %d provisions, answered %v and %v, want one", count, numbers, statuses)
	}

	// The JSON may be written otherwise: the request is the same.
	again := w.as(t, "operator", "POST", "/provisions", strings.ReplaceAll(deployBody, `": `, `" :  `), key).want(t, "a repeat", 202, "")
	if numbers[again.text("number")] == 0 || again.header.Get("Idempotency-Replayed") != "true" || again.header.Get("Location") != again.text("url") {
		t.Errorf("a repeat = %s %v, want the first answer", again.body, again.header)
	}
	w.as(t, "operator", "POST", "/provisions", strings.Replace(deployBody, `"size": 3`, `"size": 4`, 1), key).want(t, "another body", 422, "request_key_reused")
	w.as(t, "operator", "POST", "/provisions/"+again.text("number")+"/retry", "", key).want(t, "another operation", 422, "request_key_reused")
	w.as(t, "admin", "POST", "/provisions", deployBody, key).want(t, "another person", 202, "")

	// What was refused has made nothing, and may be tried again.
	w.as(t, "operator", "POST", "/provisions", `{"cluster": "new", "config_snapshot": `+snapshot+`}`, "Idempotency-Key: k2").want(t, "no cluster", 404, "cluster_not_found")
	w.NewCluster(t, "new")
	w.as(t, "operator", "POST", "/provisions", `{"cluster": "new", "config_snapshot": `+snapshot+`}`, "Idempotency-Key: k2").want(t, "the cluster is there now", 202, "")
	var invitation string
	for _, replayed := range []string{"", "true"} {
		got := w.as(t, "admin", "POST", "/invitations", `{"email": "ada@example.com", "role": "viewer"}`, "Idempotency-Key: k3").want(t, "an invitation", 201, "")
		invitation = cmp.Or(invitation, got.text("id"))
		if got.text("id") != invitation || got.header.Get("Idempotency-Replayed") != replayed {
			t.Errorf("an invitation sent twice = %s %v, want one", got.body, got.header)
		}
	}

	w.as(t, "operator", "POST", "/provisions", deployBody, "Idempotency-Key: "+strings.Repeat("k", 201)).want(t, "a long key", 422, "invalid_request")
}

// A secret is told once, and kept nowhere.
func TestSecretsAreNotAnsweredAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.as(t, "admin", "POST", "/clusters", `{"name": "mine"}`, "Idempotency-Key: k").want(t, "POST /clusters", 201, "")
	again := w.as(t, "admin", "POST", "/clusters", `{"name": "mine"}`, "Idempotency-Key: k").want(t, "a repeat", 409, "already_done")
	if !strings.Contains(again.text("hint"), first.header.Get("Location")) || first.text("token") == "" || strings.Contains(string(again.body), first.text("token")) {
		t.Errorf("a repeat = %s, want where to look, without the token", again.body)
	}
	var kept string
	if err := w.Conn.QueryRow(t.Context(), "SELECT jsonb_agg(to_jsonb(r))::text FROM tendril.requests r").Scan(&kept); err != nil || strings.Contains(kept, first.text("token")) {
		t.Errorf("kept = %s, %v, want no token in it", kept, err)
	}
}
