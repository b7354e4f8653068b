// Package olddb fills databases as releases before the baseline left them: pg_dump's
// output, made by the programs of that time. They have the schema and its first rows; one
// of commit c6a1dec has 10,000 rows.
//
// The dumps are the truth: they must not be made again by newer programs.
package olddb

import (
	"cmp"
	"compress/gzip"
	"context"
	"embed"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed *.sql.gz
var dumps embed.FS

// roles are what a dump's grants name; a server has them once.
const roles = `DO $$
DECLARE v_role text;
BEGIN
  FOREACH v_role IN ARRAY ARRAY['anon', 'authenticated', 'service_role', 'tendril_agent'] LOOP
    BEGIN
      EXECUTE format('CREATE ROLE %I NOLOGIN', v_role);
    EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
    END;
  END LOOP;
END $$;
`

// Rows is the name of the dump of c6a1dec with its rows.
const Rows = "30-rows"

// At fills an empty database as a release left it. The name is the number of that
// release's newest migration, or Rows.
func At(name string) func(ctx context.Context, url string) error {
	return func(ctx context.Context, url string) error {
		text, err := dump(name)
		if err != nil {
			return err
		}
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return err
		}
		defer conn.Close(ctx) //nolint:errcheck // a test's
		for _, part := range []string{roles, text} {
			if _, err := conn.Exec(ctx, part, pgx.QueryExecModeSimpleProtocol); err != nil {
				return fmt.Errorf("restore the dump %s: %w", name, err)
			}
		}
		return nil
	}
}

func dump(name string) (string, error) {
	file, err := dumps.Open(name + ".sql.gz")
	if err != nil {
		return "", err
	}
	defer file.Close() //nolint:errcheck // only read
	text, err := gzip.NewReader(file)
	if err != nil {
		return "", err
	}
	all, err := io.ReadAll(text)
	return string(all), err
}

// Names are those of all dumps, the oldest release's first.
func Names() (names []string) {
	files, _ := dumps.ReadDir(".") // embedded
	for _, file := range files {
		names = append(names, strings.TrimSuffix(file.Name(), ".sql.gz"))
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(release(a), release(b)), cmp.Compare(a, b)) })
	return names
}

// release is the number in a dump's name.
func release(name string) int {
	number, _, _ := strings.Cut(name, "-")
	n, _ := strconv.Atoi(number) // each name begins with one
	return n
}
