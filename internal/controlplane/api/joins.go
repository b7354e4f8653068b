package api

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/agentkey"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
)

// JoinCode is the path parameter that names an agent which waits to join.
type JoinCode struct {
	Code string `path:"code" maxLength:"40" doc:"The code that the agent shows, in any case, with or without its hyphen." example:"BCDF-GHJK"`
}

type approveJoinInput struct {
	JoinCode
	Body wire.ApproveJoinInputBody
	OrgParam
}

type newJoinTokenInput struct {
	Keyed
	ClusterRef
	Body *wire.NewJoinTokenInputBody
}

type trustIssuerInput struct {
	ClusterRef
	Body wire.TrustIssuerInputBody
}

type trustRef struct {
	ClusterRef
	ID uuid.UUID `path:"id" doc:"The id of the trusted issuer."`
}

// joins registers how agents join by key.
func (a *api) joins(h huma.API) {
	add(a, h, huma.Operation{
		OperationID: "get-join", Method: http.MethodGet, Path: "/joins/{code}", Tags: []string{"Clusters"},
		Summary:     "The agent that waits to join with a code",
		Description: "Compare the words with those that the agent shows. Those who are admin of some organisation may do this; after some wrong codes within a minute no more are taken.",
	}, func(ctx context.Context, in *JoinCode) (*answer[wire.JoinRequest], error) {
		found, err := a.as(ctx).JoinRequest(ctx, in.Code)
		if err == nil && found == nil {
			err = errNobodyWaits()
		}
		if err != nil {
			return nil, err
		}
		return &answer[wire.JoinRequest]{joinRequestOf(*found)}, nil
	})

	add(a, h, huma.Operation{
		OperationID: "approve-join", Method: http.MethodPost, Path: "/joins/{code}/approve", Tags: []string{"Clusters"},
		Summary: "Let the agent that waits with a code join a cluster", Description: "It is online within a second. Admins of the cluster's organisation may do this.",
	}, func(ctx context.Context, in *approveJoinInput) (*answer[wire.JoinedKey], error) {
		var key *uuid.UUID
		// A wrong code must not undo the transaction, which has counted it.
		c, err := about(ctx, a, ClusterRef{Ref: in.Body.Cluster, OrgParam: in.OrgParam}, "let the agent join", func(ctx context.Context, s *store.Store, c store.Cluster) (_ store.Cluster, err error) {
			key, err = s.ApproveJoin(ctx, in.Code, c.ID, in.Body.Fingerprint)
			return c, err
		})
		if err == nil && key == nil {
			err = errNobodyWaits()
		}
		if err != nil {
			return nil, err
		}
		return &answer[wire.JoinedKey]{wire.JoinedKey{ID: *key, Cluster: c.Name}}, nil
	})

	add(a, h, huma.Operation{
		OperationID: "refuse-join", Method: http.MethodPost, Path: "/joins/{code}/refuse", Tags: []string{"Clusters"}, DefaultStatus: http.StatusNoContent,
		Summary: "Refuse the agent that waits with a code", Description: "It learns so and stops. Those who are admin of some organisation may do this.",
	}, func(ctx context.Context, in *JoinCode) (*struct{}, error) {
		waited, err := a.as(ctx).RefuseJoin(ctx, in.Code)
		if err == nil && !waited {
			err = errNobodyWaits()
		}
		return nil, err
	})

	onceSecret(a, h, huma.Operation{
		OperationID: "create-join-token", Method: http.MethodPost, Path: "/clusters/{ref}/join-tokens", Tags: []string{"Clusters"}, DefaultStatus: http.StatusCreated,
		Summary: "Make a one-time token for an agent that joins without a person", Description: "Nobody can read it again. It is revoked as a cluster's token is. Admins may do this.",
	}, func(ctx context.Context, s *store.Store, in *newJoinTokenInput) (string, wire.JoinToken, error) {
		body := given(in.Body)
		valid := time.Hour
		if body.Valid != nil {
			valid = time.Duration(*body.Valid) * time.Second
		}
		c, err := in.find(ctx, s)
		if err != nil {
			return "", wire.JoinToken{}, err
		}
		made, err := s.NewJoinToken(ctx, c.ID, body.Name, valid)
		return prefix + "/clusters/" + c.ID.String() + "/tokens", wire.JoinToken(made), err
	})
	a.trusts(h)
}

// trusts registers which service accounts of Kubernetes let agents join.
func (a *api) trusts(h huma.API) {
	add(a, h, huma.Operation{
		OperationID: "list-trusted-issuers", Method: http.MethodGet, Path: "/clusters/{ref}/trusted-issuers", Tags: []string{"Clusters"},
		Summary: "The Kubernetes clusters whose service accounts let agents join", Description: "The newest first, in one page. Admins may do this.",
	}, func(ctx context.Context, in *ClusterRef) (*listed[wire.TrustedIssuer], error) {
		list, err := about(ctx, a, *in, "list the trusted issuers", func(ctx context.Context, s *store.Store, c store.Cluster) ([]store.TrustedIssuer, error) {
			return s.TrustedIssuers(ctx, c.ID)
		})
		return listAfter("trusted-issuers", each(func(t store.TrustedIssuer) wire.TrustedIssuer { return wire.TrustedIssuer(t) }, list), "", err)
	})
	add(a, h, huma.Operation{
		OperationID: "trust-issuer", Method: http.MethodPost, Path: "/clusters/{ref}/trusted-issuers", Tags: []string{"Clusters"},
		Summary:     "Let agents join by service accounts of a Kubernetes cluster",
		Description: "This server does not ask the issuer: upload its keys here. The same issuer and audience once more replaces service accounts, keys and how long. Admins may do this.",
	}, func(ctx context.Context, in *trustIssuerInput) (*answer[wire.Trusted], error) {
		return told(ctx, a, func(t store.Trusted) wire.Trusted { return wire.Trusted(t) }, in.ClusterRef, "trust the issuer", func(ctx context.Context, s *store.Store, c store.Cluster) (store.Trusted, error) {
			trust := store.Trust{Issuer: in.Body.Issuer, Subjects: in.Body.Subjects, Keys: in.Body.Keys, Audience: in.Body.Audience}
			if in.Body.Valid != nil {
				valid := time.Duration(*in.Body.Valid) * time.Second
				trust.Valid = &valid
			}
			return s.TrustIssuer(ctx, c.ID, trust)
		})
	})
	add(a, h, huma.Operation{
		OperationID: "untrust-issuer", Method: http.MethodDelete, Path: "/clusters/{ref}/trusted-issuers/{id}", Tags: []string{"Clusters"}, DefaultStatus: http.StatusNoContent,
		Summary: "Trust a Kubernetes cluster no more", Description: "Agents that have joined stay: revoke their keys. Admins may do this.",
	}, func(ctx context.Context, in *trustRef) (*struct{}, error) {
		return nothing(ctx, a, in.ClusterRef, "trust the issuer no more", func(ctx context.Context, s *store.Store, c store.Cluster) error {
			was, err := s.UntrustIssuer(ctx, c.ID, in.ID)
			if err == nil && !was {
				err = newProblem(http.StatusNotFound, "trust_not_found", fmt.Sprintf("cluster %s trusts no issuer %s", c.Name, in.ID), "")
			}
			return err
		})
	})
}

func errNobodyWaits() error {
	return newProblem(http.StatusNotFound, "join_not_found", "no agent waits with this code", "codes are valid for ten minutes: compare it with what the agent shows, or have it join again")
}

func joinRequestOf(r store.JoinRequest) wire.JoinRequest {
	words, _ := agentkey.WordsOfText(r.Fingerprint) // the database's own digits
	operations := r.Operations
	if operations == nil {
		operations = []string{}
	}
	return wire.JoinRequest{
		Fingerprint: r.Fingerprint, Words: words, Name: r.Name, Host: r.Host, Version: r.Version, Slots: r.Slots, Operations: operations,
		Wanted: r.Wanted, Address: r.Address, RequestedAt: r.RequestedAt, ExpiresAt: r.ExpiresAt,
	}
}

func clusterTokenOf(t store.ClusterToken) wire.ClusterToken {
	words := ""
	if t.Fingerprint != "" {
		words, _ = agentkey.WordsOfText(t.Fingerprint)
	}
	return wire.ClusterToken{
		ID: t.ID, Kind: t.Kind(), CreatedAt: t.CreatedAt, ExpiresAt: t.ExpiresAt, RevokedAt: t.RevokedAt, CreatedBy: t.CreatedBy,
		Name: t.Name, Fingerprint: t.Fingerprint, Words: words, Parent: t.Parent, LastUsedAt: t.LastUsedAt, LastAddress: t.LastAddress,
	}
}
