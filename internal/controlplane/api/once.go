package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// Keyed is the header by which a request can be sent twice and carried out once.
type Keyed struct {
	IdempotencyKey string `header:"Idempotency-Key" json:"-" maxLength:"200" pattern:"^[!-~]*$" patternDescription:"visible ASCII characters" doc:"A word of your own, new for each request, such as a UUID. The same request with the same key within 24 hours is not carried out again: it is answered as the first one was." example:"7c9e6679-7425-40de-944b-e07fc1f90ae7"`
}

func (k Keyed) key() string { return k.IdempotencyKey }

// keyed is the input of an operation that makes something.
type keyed interface{ key() string }

// made is its answer.
type made[T any] struct {
	Location string `header:"Location" doc:"Where what was made can be read." example:"/api/v1/provisions/42"`
	Replayed string `header:"Idempotency-Replayed" doc:"true when this request was carried out before, and this is what it was answered then." example:"true"`
	Body     T
}

// once registers an operation that makes something: in one transaction, and with
// an Idempotency-Key once only. do returns where the new thing is, and the answer.
func once[I keyed, T any](a *api, h huma.API, op huma.Operation, do func(context.Context, *store.Store, *I) (string, T, error)) {
	carryOut(a, h, op, do, false)
}

// onceSecret is once where the answer has a secret: it is not kept, so a repeat
// is told where to look, and no more.
func onceSecret[I keyed, T any](a *api, h huma.API, op huma.Operation, do func(context.Context, *store.Store, *I) (string, T, error)) {
	op.Description += " With an Idempotency-Key a repeat is refused (409, already_done): the secret of the first answer is not kept."
	carryOut(a, h, op, do, true)
}

func carryOut[I keyed, T any](a *api, h huma.API, op huma.Operation, do func(context.Context, *store.Store, *I) (string, T, error), secret bool) {
	add(a, h, op, func(ctx context.Context, in *I) (*made[T], error) {
		answer := &made[T]{}
		key := (*in).key()
		err := a.as(ctx).Within(ctx, "carry out the request", func(ctx context.Context, s *store.Store) error {
			if key == "" {
				var err error
				answer.Location, answer.Body, err = do(ctx, s, in)
				return err
			}
			digest, err := digestOf(op.OperationID, in)
			if err != nil {
				return err
			}
			before, err := s.BeginRequest(ctx, key, digest)
			if err != nil {
				return err
			}
			if before != nil {
				return replay(answer, before)
			}
			if answer.Location, answer.Body, err = do(ctx, s, in); err != nil {
				return err
			}
			keep := store.Answered{Location: answer.Location}
			if !secret {
				if keep.Answer, err = json.Marshal(answer.Body); err != nil {
					return err
				}
			}
			return s.FinishRequest(ctx, key, digest, keep)
		})
		return answer, err
	})
}

func replay[T any](answer *made[T], before *store.Answered) error {
	answer.Location, answer.Replayed = before.Location, "true"
	if before.Answer == nil {
		return newProblem(http.StatusConflict, "already_done", "this request was carried out already; its answer had a secret, which is not kept",
			"look at "+before.Location+", and have a new secret made there if the first answer is lost")
	}
	return json.Unmarshal(before.Answer, &answer.Body)
}

// digestOf tells requests apart: the operation and all that was given to it, but
// for the key.
func digestOf(operation string, input any) (string, error) {
	text, err := json.Marshal(input)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(append([]byte(operation+"\n"), text...))
	return hex.EncodeToString(sum[:]), nil
}
