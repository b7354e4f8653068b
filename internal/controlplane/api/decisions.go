package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

// statusAnswer is what a decision has brought about.
type statusAnswer struct {
	Body struct {
		Status provision.Status `json:"status" doc:"The provision's state now." example:"QUEUED"`
	}
}

type approveInput struct {
	ProvisionRef
	Body struct {
		PlanDigest string `json:"plan_digest" pattern:"^[0-9a-f]{64}$" doc:"The plan_digest of the plan that you have seen: no other plan is approved by this." example:"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"`
	}
}

type rejectInput struct {
	ProvisionRef
	Body *struct {
		Reason string `json:"reason,omitempty" maxLength:"1000" doc:"Why; shown to others." example:"the database would be replaced"`
	}
}

type retryInput struct {
	ProvisionRef
	Keyed
}

// decisions registers what people decide about provisions.
func (a *api) decisions(h huma.API) {
	operation := func(word, summary, description string) huma.Operation {
		return huma.Operation{
			OperationID: word + "-provision", Method: http.MethodPost, Path: "/provisions/{ref}/" + word, Tags: []string{"Decisions"},
			Summary: summary, Description: description,
		}
	}

	add(a, h, operation("approve", "Let a plan be applied", "Operators may do this, unless the cluster's policy wants an admin or somebody else than who asked. The same once more changes nothing."),
		func(ctx context.Context, in *approveInput) (*statusAnswer, error) {
			return a.decide(ctx, in.Ref, "approve the plan", func(ctx context.Context, s *store.Store, p store.ProvisionKey) (provision.Status, error) {
				return s.Approve(ctx, p.ID, in.Body.PlanDigest)
			})
		})

	add(a, h, operation("reject", "Turn a plan down", "The provision ends as CANCELLED, and nothing is changed. Operators may do this. The same once more changes nothing."),
		func(ctx context.Context, in *rejectInput) (*statusAnswer, error) {
			reason := ""
			if in.Body != nil {
				reason = in.Body.Reason
			}
			return a.decide(ctx, in.Ref, "reject the plan", func(ctx context.Context, s *store.Store, p store.ProvisionKey) (provision.Status, error) {
				return provision.Cancelled, s.Reject(ctx, p.ID, reason)
			})
		})

	add(a, h, operation("cancel", "Cancel a provision", "What waits is cancelled at once (CANCELLED); what runs is asked to stop, and goes on being PROCESSING until it has. Operators may do this. The same once more changes nothing."),
		func(ctx context.Context, in *ProvisionRef) (*statusAnswer, error) {
			return a.decide(ctx, in.Ref, "cancel the provision", func(ctx context.Context, s *store.Store, p store.ProvisionKey) (provision.Status, error) {
				return s.Cancel(ctx, p.ID)
			})
		})

	retry := operation("retry", "Try again", "Queues what an ended provision asked for once more, as a provision of its own. While one such has not ended, that one is answered. Operators may do this.")
	retry.DefaultStatus = http.StatusAccepted
	once(a, h, retry, func(ctx context.Context, s *store.Store, in *retryInput) (string, queuedAnswer, error) {
		p, err := s.ProvisionByRef(ctx, in.Ref)
		if err != nil {
			return "", queuedAnswer{}, err
		}
		id, err := s.Retry(ctx, p.ID)
		if err != nil {
			return "", queuedAnswer{}, err
		}
		again, err := s.ProvisionByRef(ctx, id.String())
		if err != nil {
			return "", queuedAnswer{}, err
		}
		return queued(again.ID, again.Number, again.Workspace)
	})
}

// decide has a decision about the provision of that ref made.
func (a *api) decide(ctx context.Context, ref, doing string, decision func(context.Context, *store.Store, store.ProvisionKey) (provision.Status, error)) (*statusAnswer, error) {
	answer := &statusAnswer{}
	err := a.as(ctx).Within(ctx, doing, func(ctx context.Context, s *store.Store) error {
		p, err := s.ProvisionByRef(ctx, ref)
		if err != nil {
			return err
		}
		answer.Body.Status, err = decision(ctx, s, p)
		return err
	})
	return answer, err
}
