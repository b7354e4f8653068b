// Command listen is the least that an agent can be: it LISTENs in the database
// at its argument, says so, and waits. It claims nothing.
package main

import (
	"context"
	"log"
	"os"

	"github.com/jackc/pgx/v5"
)

func main() {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, os.Args[1])
	if err == nil {
		_, err = conn.Exec(ctx, "LISTEN tendril_work")
	}
	if err != nil {
		log.Fatal(err)
	}
	_, _ = os.Stdout.WriteString("listening\n")
	for err == nil {
		_, err = conn.WaitForNotification(ctx)
	}
	log.Fatal(err)
}
