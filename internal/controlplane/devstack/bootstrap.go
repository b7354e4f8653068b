package devstack

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tendril-run/tendril/internal/controlplane/instance"
)

// home is what a Stack owns in its database.
type home struct {
	org, cluster uuid.UUID
	token        string
}

// settle makes, where they are missing, the organisation of the local user, the
// cluster and its token. It acts as the database's owner.
func settle(ctx context.Context, db *pgxpool.Pool, tokenFile string) (h home, err error) {
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		// One at a time on a database that several share; in the audit it was
		// the local user.
		if _, err := tx.Exec(ctx, `SELECT set_config('request.jwt.claims', jsonb_build_object('sub', $1::uuid)::text, true)
			FROM (SELECT FROM tendril.locks WHERE name = 'up' FOR UPDATE) l`, instance.LocalUser); err != nil {
			return err
		}
		if h.org, err = ensureOrg(ctx, tx); err != nil {
			return err
		}
		if h.cluster, h.token, err = ensureCluster(ctx, tx, h.org); err != nil {
			return err
		}
		if h.token != "" {
			return instance.WriteSecret(tokenFile, []byte(h.token+"\n"))
		}
		// Written before the commit: a crash between the two leaves a file with
		// a token that the next start finds invalid and replaces.
		h.token, err = ensureToken(ctx, tx, h.cluster, tokenFile)
		return err
	})
	if err != nil {
		return home{}, fmt.Errorf("set up organisation, cluster and token: %w", err)
	}
	return h, nil
}

func ensureOrg(ctx context.Context, tx pgx.Tx) (org uuid.UUID, err error) {
	err = tx.QueryRow(ctx, "SELECT org_id FROM public.org_members WHERE user_id = $1 AND role = 'admin' ORDER BY created_at, org_id LIMIT 1", instance.LocalUser).Scan(&org)
	if !errors.Is(err, pgx.ErrNoRows) {
		return org, err
	}
	err = tx.QueryRow(ctx, `
		WITH org AS (INSERT INTO public.orgs (name) VALUES ('local') RETURNING id)
		INSERT INTO public.org_members (org_id, user_id, role) SELECT id, $1, 'admin' FROM org RETURNING org_id`, instance.LocalUser).Scan(&org)
	return org, err
}

// ensureCluster returns the cluster, and its first token if it had to be made.
func ensureCluster(ctx context.Context, tx pgx.Tx, org uuid.UUID) (cluster uuid.UUID, token string, err error) {
	err = tx.QueryRow(ctx, "SELECT id FROM public.clusters WHERE org_id = $1 AND name = $2", org, ClusterName).Scan(&cluster)
	if errors.Is(err, pgx.ErrNoRows) {
		err = tx.QueryRow(ctx, "SELECT cluster_id, token FROM public.create_cluster($1, $2)", ClusterName, org).Scan(&cluster, &token)
	}
	return cluster, token, err
}

// ensureToken returns the token in the file if it is the cluster's and valid,
// else a new one. The others stay valid: other machines may hold them.
func ensureToken(ctx context.Context, tx pgx.Tx, cluster uuid.UUID, file string) (string, error) {
	content, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read the agent token: %w", err)
	}
	token := strings.TrimSpace(string(content))
	once := sha256.Sum256([]byte(token))
	digest := sha256.Sum256(once[:])
	var valid bool
	err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM tendril.cluster_tokens WHERE cluster_id = $1 AND digest = $2
		AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > clock_timestamp()))`, cluster, digest[:]).Scan(&valid)
	if err != nil || valid {
		return token, err
	}
	if err := tx.QueryRow(ctx, "SELECT token FROM tendril.issue_token($1)", cluster).Scan(&token); err != nil {
		return "", err
	}
	return token, instance.WriteSecret(file, []byte(token+"\n"))
}
