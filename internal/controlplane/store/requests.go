package store

import (
	"context"
	"encoding/json"
)

// Answered is what a request was answered that its sender had named by a key.
type Answered struct {
	Location string
	// Answer is nil where it held a secret, which is not kept.
	Answer json.RawMessage
}

// BeginRequest begins a request that the person names by a key, and whose SHA-256
// in hexadecimal is digest, in the transaction (Within) in which it is carried
// out. It returns what it was answered where it was carried out already, within a
// day, and nil where it is to be. A *RefusedError says so while it is being
// carried out, and when the key was another request's.
func (s *Store) BeginRequest(ctx context.Context, key, digest string) (*Answered, error) {
	begun, err := one[*json.RawMessage](ctx, s, "look for the request", "SELECT public.begin_request($1, $2) AS answer", key, digest)
	if err != nil || begun == nil {
		return nil, err
	}
	var kept struct {
		Location string          `json:"location"`
		Answer   json.RawMessage `json:"answer"`
	}
	if err := json.Unmarshal(*begun, &kept); err != nil {
		return nil, err
	}
	if string(kept.Answer) == "null" {
		kept.Answer = nil
	}
	return &Answered{kept.Location, kept.Answer}, nil
}

// FinishRequest keeps what the request is answered, in the same transaction.
func (s *Store) FinishRequest(ctx context.Context, key, digest string, a Answered) error {
	var answer *string
	if a.Answer != nil {
		text := string(a.Answer)
		answer = &text
	}
	_, err := rows[struct{}](ctx, s, "keep the answer", "SELECT FROM public.finish_request($1, $2, $3, $4::text::jsonb)", key, digest, a.Location, answer)
	return err
}
