// Command measure prints how long this machine takes for what takes at most its
// argument on an idle machine of two cores, for time-outs that are given on a command
// line:
//
//	go test -timeout "$(go run ./internal/testkit/patience/measure 20m)" ./...
package main

import (
	"fmt"
	"os"
	"time"

	"github.com/tendril-run/tendril/internal/testkit/patience"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: measure DURATION")
		os.Exit(2)
	}
	usual, err := time.ParseDuration(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "measure:", err)
		os.Exit(2)
	}
	fmt.Println(patience.For(usual).Round(time.Second))
}
