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
	"github.com/tendril-run/tendril/internal/queue"
)

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

type uploadAnswer struct {
	Body struct {
		ID uuid.UUID `json:"id" doc:"What a snapshot names it by (state.upload)."`
	}
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

func (a *api) upload(ctx context.Context, in *uploadInput) (*uploadAnswer, error) {
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
	answer := &uploadAnswer{}
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
