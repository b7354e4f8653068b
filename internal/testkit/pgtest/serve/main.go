// Command serve runs one PostgreSQL for the tests of all packages, so that it is started
// and migrated once. It says where the server is in a file, whose name the tests get in
// TENDRIL_TEST_POSTGRES, and stops the server when its standard input ends.
//
//	go run ./internal/testkit/pgtest/serve FILE
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: serve FILE")
		os.Exit(2)
	}
	err := pgtest.Serve(os.Args[1], func() error {
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "serve:", err)
		os.Exit(1)
	}
}
