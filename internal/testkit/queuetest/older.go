package queuetest

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/testkit/olddb"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// lastOfContractBefore is the last migration of the contract before
// queue.Contract: the one before that which replaces contract_version() with it.
const lastOfContractBefore = "61"

// MigratedBefore fills a test's database with the contract before this
// program's, as one that nobody has migrated yet.
var MigratedBefore = pgtest.All(stamped, pgtest.WithSetup("contract before", func(ctx context.Context, url string) error {
	if err := olddb.At(lastOfContractBefore)(ctx, url); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing is written
	var contract int
	if err := conn.QueryRow(ctx, "SELECT tendril.contract_version()").Scan(&contract); err != nil {
		return err
	}
	if contract != queue.Contract-1 {
		return fmt.Errorf("after migration %s the contract is %d, want %d: mend lastOfContractBefore", lastOfContractBefore, contract, queue.Contract-1)
	}
	return nil
}))
