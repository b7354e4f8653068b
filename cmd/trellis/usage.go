package main

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tendril-run/tendril/internal/provision"
)

// verb refuses a word that is no verb of cmd.
func verb(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var known []string
	for _, c := range cmd.Commands() {
		if !c.Hidden {
			known = append(known, c.Name())
		}
	}
	return wrongUsage("there is no %q%s", cmd.CommandPath()+" "+args[0], provision.DidYouMean(args[0], known))
}

// none wants no argument.
func none(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return wrongUsage("%s takes no argument, and there is %q", cmd.CommandPath(), args[0])
	}
	return nil
}

// one wants one argument, which what names.
func one(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return wrongUsage("give one argument, %s; there are %d", what, len(args))
		}
		return nil
	}
}

// atMostOne wants one argument or none.
func atMostOne(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > 1 {
			return wrongUsage("give one argument at most, %s; there are %d", what, len(args))
		}
		return nil
	}
}

// usageError is a mistake on the command line that a verb found itself.
type usageError struct{ message string }

func (e *usageError) Error() string { return e.message }

func wrongUsage(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// flagProblem says what is wrong with a flag, without Go's words for it.
func flagProblem(err error) error {
	invalid, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	if _, ok := errors.AsType[*strconv.NumError](err); ok {
		return wrongUsage("--%s: %q is no number that is possible there", invalid.GetFlag().Name, invalid.GetValue())
	}
	if invalid.GetFlag().Value.Type() == "duration" {
		return wrongUsage("--%s: %q is no time such as 90s, 45m or 24h", invalid.GetFlag().Name, invalid.GetValue())
	}
	return err
}
