package api

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

// ProvisionRef is the path parameter that names a provision.
type ProvisionRef struct {
	Ref string `path:"ref" maxLength:"100" doc:"The provision, by its number or id." example:"42"`
}

func (in ProvisionRef) find(ctx context.Context, s *store.Store) (store.ProvisionKey, error) {
	return s.ProvisionByRef(ctx, in.Ref)
}

type provisionsInput struct {
	OrgParam
	PageParams
	Status    []provision.Status    `query:"status" enum:"QUEUED,PROCESSING,AWAITING_APPROVAL,AWAITING_INPUT,SUCCESS,FAILED,CANCELLED" doc:"Only those in one of these states, separated by commas."`
	Operation []provision.Operation `query:"operation" enum:"plan,apply,destroy,refresh,power,unlock,state" doc:"Only those of one of these operations, separated by commas."`
	Cluster   string                `query:"cluster" maxLength:"100" doc:"Only those of this cluster, by its name or id." example:"prod"`
	Workspace string                `query:"workspace" maxLength:"200" doc:"Only those of this workspace, by its name or id." example:"acme/prod"`
}

type deployInput struct {
	Keyed
	Body wire.DeployInputBody
	OrgParam
}

func queued(id uuid.UUID, number int64, workspace string) (string, wire.QueuedAnswer, error) {
	url := fmt.Sprintf("%s/provisions/%d", prefix, number)
	return url, wire.QueuedAnswer{ID: id, Number: number, Workspace: workspace, URL: url, LogsURL: url + "/logs"}, nil
}

// provisions registers what is asked of provisions: to make them and to read
// them.
func (a *api) provisions(h huma.API) {
	add(a, h, huma.Operation{
		OperationID: "list-provisions", Method: http.MethodGet, Path: "/provisions", Tags: []string{"Provisions"},
		Summary: "List provisions, the newest first",
		Description: "Without their snapshots, stages, and what their plans say of each resource. With filters, a page looks through so many provisions and no more: " +
			"it may have fewer entries than the limit, or none, while its next_cursor says that there is more to look through.",
	}, a.listProvisions)

	once(a, h, huma.Operation{
		OperationID: "create-provision", Method: http.MethodPost, Path: "/provisions", Tags: []string{"Provisions"},
		Summary:       "Deploy: queue a snapshot on a cluster",
		Description:   "It is accepted when it is queued; an agent of the cluster runs it as soon as the workspace is free. Operators may do this. A snapshot that is not right is refused with reason bad_snapshot, and errors name every field of it that is wrong.",
		DefaultStatus: http.StatusAccepted,
	}, func(ctx context.Context, s *store.Store, in *deployInput) (string, wire.QueuedAnswer, error) {
		org, err := in.org(ctx, s)
		if err != nil {
			return "", wire.QueuedAnswer{}, err
		}
		cluster, err := s.ClusterByRef(ctx, org, in.Body.Cluster)
		if err != nil {
			return "", wire.QueuedAnswer{}, err
		}
		d, err := s.Deploy(ctx, cluster.ID, in.Body.Operation, in.Body.Snapshot)
		if err != nil {
			return "", wire.QueuedAnswer{}, err
		}
		return queued(d.ID, d.Number, d.Workspace)
	})

	add(a, h, huma.Operation{
		OperationID: "get-provision", Method: http.MethodGet, Path: "/provisions/{ref}", Tags: []string{"Provisions"},
		Summary: "Everything about one provision",
	}, func(ctx context.Context, in *ProvisionRef) (*answer[wire.Provision], error) {
		found, err := a.as(ctx).Provision(ctx, in.Ref)
		return body(provisionOf, found, err)
	})
}

func (a *api) listProvisions(ctx context.Context, in *provisionsInput) (*listed[wire.Provision], error) {
	var before int64
	if err := decodeCursor("provisions", in.Cursor, &before); err != nil {
		return nil, err
	}
	filter := store.ProvisionFilter{Statuses: in.Status, Operations: in.Operation}
	var list []store.Provision
	var next int64
	err := a.as(ctx).Within(ctx, "list the provisions", func(ctx context.Context, s *store.Store) error {
		org, err := s.FindOrg(ctx, in.Org)
		if err != nil {
			return err
		}
		if in.Cluster != "" {
			cluster, err := s.ClusterByRef(ctx, org.ID, in.Cluster)
			if err != nil {
				return err
			}
			filter.Cluster = cluster.ID
		}
		if in.Workspace != "" {
			workspace, err := s.WorkspaceByRef(ctx, org.ID, filter.Cluster, in.Workspace)
			if err != nil {
				return err
			}
			filter.Workspace = workspace.ID
		}
		list, next, err = s.ListProvisions(ctx, org.ID, filter, before, in.Limit)
		return err
	})
	return listAfter("provisions", each(provisionOf, list), next, err)
}

type provisionListInput struct {
	ProvisionRef
	PageParams
}

// provisionParts registers what is read of one provision alone.
func (a *api) provisionParts(h huma.API) {
	operation := func(word, summary, description string) huma.Operation {
		return huma.Operation{
			OperationID: "get-provision-" + word, Method: http.MethodGet, Path: "/provisions/{ref}/" + word, Tags: []string{"Provisions"},
			Summary: summary, Description: description,
		}
	}

	add(a, h, operation("resources", "What it has made or changed", "By address; without what a later provision has changed since."),
		func(ctx context.Context, in *provisionListInput) (*listed[wire.Resource], error) {
			return paged(ctx, a, in.ProvisionRef, in.PageParams, "resources", "list the resources", resourceOf, func(ctx context.Context, s *store.Store, p store.ProvisionKey, after string, limit int) ([]store.Resource, string, error) {
				return s.ListProvisionResources(ctx, p, after, limit)
			})
		})

	add(a, h, operation("stages", "The stages it has reached, with their times", "In their order, in one page."),
		func(ctx context.Context, in *ProvisionRef) (*listed[wire.StageTime], error) {
			p, err := a.as(ctx).Provision(ctx, in.Ref)
			return listAfter("stages", each(stageTimeOf, p.Stages), "", err)
		})

	add(a, h, operation("plan", "What its plan would do, resource by resource", "What is sensitive is not among it."),
		func(ctx context.Context, in *ProvisionRef) (*answer[wire.PlanAnswerBody], error) {
			answer := &answer[wire.PlanAnswerBody]{}
			p, err := a.as(ctx).Provision(ctx, in.Ref)
			if p.PlanDigest != nil {
				answer.Body.PlanDigest = *p.PlanDigest
			}
			answer.Body.Status, answer.Body.Plan = p.Status, p.Plan
			return answer, err
		})
}

type approveInput struct {
	ProvisionRef
	Body wire.ApproveInputBody
}

type rejectInput struct {
	ProvisionRef
	Body *wire.RejectInputBody
}

type inputInput struct {
	ProvisionRef
	Body wire.GiveInputBody
}

type assignInput struct {
	ProvisionRef
	Body *wire.AssignInputBody
}

type commentInput struct {
	ProvisionRef
	Body wire.CommentBody
}

type retryInput struct {
	ProvisionRef
	Keyed
	Body *wire.RetryInputBody
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
		func(ctx context.Context, in *approveInput) (*answer[wire.StatusAnswerBody], error) {
			return a.decide(ctx, in.Ref, "approve the plan", func(ctx context.Context, s *store.Store, p store.ProvisionKey) (provision.Status, error) {
				return s.Approve(ctx, p.ID, in.Body.PlanDigest)
			})
		})

	add(a, h, operation("reject", "Turn a plan down", "The provision ends as CANCELLED, and nothing is changed. Operators may do this. The same once more changes nothing."),
		func(ctx context.Context, in *rejectInput) (*answer[wire.StatusAnswerBody], error) {
			return a.decide(ctx, in.Ref, "reject the plan", func(ctx context.Context, s *store.Store, p store.ProvisionKey) (provision.Status, error) {
				return provision.Cancelled, s.Reject(ctx, p.ID, given(in.Body).Reason)
			})
		})

	add(a, h, operation("cancel", "Cancel a provision", "What waits is cancelled at once (CANCELLED); what runs is asked to stop, and goes on being PROCESSING until it has. Operators may do this. The same once more changes nothing."),
		func(ctx context.Context, in *ProvisionRef) (*answer[wire.StatusAnswerBody], error) {
			return a.decide(ctx, in.Ref, "cancel the provision", func(ctx context.Context, s *store.Store, p store.ProvisionKey) (provision.Status, error) {
				return s.Cancel(ctx, p.ID)
			})
		})

	add(a, h, operation("input", "Say that its work was done, or could not be", "For a provision that is AWAITING_INPUT. An agent records the answer in its next run: SUCCESS, or FAILED with error_code manual_failed. What is secret goes in sealed to the cluster's key. Operators may do this. The same once more changes nothing."),
		func(ctx context.Context, in *inputInput) (*answer[wire.StatusAnswerBody], error) {
			return a.decide(ctx, in.Ref, "give the answer", func(ctx context.Context, s *store.Store, p store.ProvisionKey) (provision.Status, error) {
				return s.GiveInput(ctx, p.ID, provision.Input(in.Body))
			})
		})

	add(a, h, operation("assign", "Say who is to do its work", "For a provision that is AWAITING_INPUT. Any operator may still answer. Operators may do this."),
		func(ctx context.Context, in *assignInput) (*struct{}, error) {
			return nothing(ctx, a, in.ProvisionRef, "assign the work", func(ctx context.Context, s *store.Store, p store.ProvisionKey) error {
				return s.AssignInput(ctx, p.ID, given(in.Body).User)
			})
		})

	add(a, h, operation("comment", "Add a comment to its log", "While it has not ended. Operators may do this."),
		func(ctx context.Context, in *commentInput) (*struct{}, error) {
			return nothing(ctx, a, in.ProvisionRef, "add the comment", func(ctx context.Context, s *store.Store, p store.ProvisionKey) error {
				return s.Comment(ctx, p.ID, in.Body.Text)
			})
		})

	retry := operation("retry", "Try again", "Queues what an ended provision asked for once more, as a provision of its own. While one such has not ended, that one is answered. Operators may do this.")
	retry.DefaultStatus = http.StatusAccepted
	once(a, h, retry, func(ctx context.Context, s *store.Store, in *retryInput) (string, wire.QueuedAnswer, error) {
		p, err := s.ProvisionByRef(ctx, in.Ref)
		if err != nil {
			return "", wire.QueuedAnswer{}, err
		}
		id, err := s.Retry(ctx, p.ID, given(in.Body).RequesterKey)
		if err != nil {
			return "", wire.QueuedAnswer{}, err
		}
		again, err := s.ProvisionByRef(ctx, id.String())
		if err != nil {
			return "", wire.QueuedAnswer{}, err
		}
		return queued(again.ID, again.Number, again.Workspace)
	})
}

// decide has a decision about the provision of that ref made.
func (a *api) decide(ctx context.Context, ref, doing string, decision func(context.Context, *store.Store, store.ProvisionKey) (provision.Status, error)) (*answer[wire.StatusAnswerBody], error) {
	answer := &answer[wire.StatusAnswerBody]{}
	var err error
	answer.Body.Status, err = about(ctx, a, ProvisionRef{ref}, doing, decision)
	return answer, err
}

const (
	// uploadLimit is the most that somebody can bring, as in the database.
	uploadLimit = 64 << 20
	// partLimit is how long a client may take to send or read one part of it.
	partLimit = time.Minute
	// octets is the media type of what only its receiver can read.
	octets = "application/octet-stream"
)

type uploadInput struct {
	Cluster string `query:"cluster" required:"true" minLength:"1" maxLength:"100" doc:"The cluster to whose key it is sealed, by its name or id." example:"prod"`
	OrgParam
	ID     string `query:"id" format:"uuid" doc:"The id it is to have, a new UUID of your own: the same once more makes no second one. Not given: one is chosen."`
	body   io.Reader
	length int64 // below 0: not said
	// extend allows the next part its time.
	extend func()
}

// Resolve implements huma.Resolver: the body is read in parts, and never held as a
// whole.
func (in *uploadInput) Resolve(ctx huma.Context) []error {
	r, _ := humago.Unwrap(ctx)
	in.body, in.length = r.Body, r.ContentLength
	in.extend = func() { _ = ctx.SetReadDeadline(time.Now().Add(partLimit)) } // what cannot have one has none
	return nil
}

// sealed registers what only agents and requesters can read: it passes through
// here as it is.
func (a *api) sealed(h huma.API) {
	add(a, h, huma.Operation{
		OperationID: "create-upload", Method: http.MethodPost, Path: "/uploads", Tags: []string{"Provisions"}, DefaultStatus: http.StatusCreated, Metadata: streaming,
		Summary:     "Bring something sealed to a cluster's key, for an operation to take",
		Description: "Such as a state for the operation state. At most 64 MiB. It goes when that operation has succeeded, else after a day. Admins may do this.",
		Errors:      []int{http.StatusLengthRequired},
		RequestBody: &huma.RequestBody{Required: true, Description: "An age message to the cluster's age_public_key.", Content: map[string]*huma.MediaType{
			octets: {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}},
		}},
	}, a.upload)

	add(a, h, huma.Operation{
		OperationID: "get-provision-result", Method: http.MethodGet, Path: "/provisions/{ref}/result", Tags: []string{"Provisions"}, Metadata: streaming,
		Summary: "What it has left for who asked for it, such as a state that it read", Description: "Sealed to the requester_key of its snapshot. For who asked for it, as an operator, and for admins.",
		Responses: map[string]*huma.Response{"200": {
			Description: "The sealed bytes",
			Headers:     map[string]*huma.Param{"Repr-Digest": {Description: "The SHA-256 of all of it (RFC 9530).", Schema: &huma.Schema{Type: huma.TypeString}}},
			Content:     map[string]*huma.MediaType{octets: {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}},
		}},
	}, a.result)
}

func (a *api) upload(ctx context.Context, in *uploadInput) (*answer[wire.UploadAnswerBody], error) {
	length := in.length
	switch {
	case length < 0:
		return nil, newProblem(http.StatusLengthRequired, "length_required", "it must be said beforehand how many bytes come", "send a Content-Length")
	case length == 0:
		return nil, newProblem(http.StatusBadRequest, "malformed_request", "there is nothing in the body", "")
	case length > uploadLimit:
		return nil, newProblem(http.StatusRequestEntityTooLarge, "request_too_large", fmt.Sprintf("%d bytes, at most %d are allowed", length, uploadLimit), "")
	}
	s := a.as(ctx)
	org, err := in.org(ctx, s)
	if err != nil {
		return nil, err
	}
	cluster, err := s.ClusterByRef(ctx, org, in.Cluster)
	if err != nil {
		return nil, err
	}
	answer := &answer[wire.UploadAnswerBody]{}
	if answer.Body.ID, err = uuid.Parse(in.ID); err != nil { // the document says what it must be
		answer.Body.ID = uuid.New()
	}
	parts := int((length + queue.BlobPart - 1) / queue.BlobPart)
	buffer := make([]byte, min(queue.BlobPart, length))
	for part := 1; part <= parts; part++ {
		in.extend()
		piece := buffer[:min(queue.BlobPart, length)]
		if _, err := io.ReadFull(in.body, piece); err != nil {
			return nil, newProblem(http.StatusBadRequest, "malformed_request", "the body ended before all of it had come", "")
		}
		length -= int64(len(piece))
		if err := s.UploadPart(ctx, cluster.ID, answer.Body.ID, part, parts, piece); err != nil {
			return nil, err
		}
	}
	return answer, nil
}

func (a *api) result(ctx context.Context, in *ProvisionRef) (*huma.StreamResponse, error) {
	s := a.as(ctx)
	p, err := s.ProvisionByRef(ctx, in.Ref)
	if err != nil {
		return nil, err
	}
	first, err := s.ResultPart(ctx, p.ID, 1)
	if err != nil {
		return nil, err
	}
	digest, err := hex.DecodeString(first.Digest)
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(c huma.Context) {
		_, w := humago.Unwrap(c)
		w.Header().Set("Content-Type", octets)
		w.Header().Set("Content-Disposition", fmt.Sprintf(`attachment; filename="provision-%d.age"`, p.Number))
		w.Header().Set("Repr-Digest", "sha-256=:"+base64.StdEncoding.EncodeToString(digest)+":")
		if err := a.sendResult(ctx, w, s, p.ID, first); err != nil {
			if ctx.Err() == nil {
				a.Log.Warn("a result was broken off", "provision", p.ID, "error", err)
			}
			panic(http.ErrAbortHandler) // half of it must not look whole
		}
	}}, nil
}

func (a *api) sendResult(ctx context.Context, w http.ResponseWriter, s *store.Store, id uuid.UUID, first queue.PartOfBlob) error {
	rc := http.NewResponseController(w)
	for part, now := 1, first; ; {
		data, err := base64.StdEncoding.DecodeString(now.Data)
		if err != nil {
			return err
		}
		_ = rc.SetWriteDeadline(time.Now().Add(partLimit)) // the server's own is for the whole
		if _, err := w.Write(data); err != nil {
			return err
		}
		if part++; part > first.Parts {
			return nil
		}
		if now, err = s.ResultPart(ctx, id, part); err != nil {
			return err
		}
		if now.Digest != first.Digest {
			return errors.New("the result has changed while it was read")
		}
	}
}
