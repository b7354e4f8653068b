package agent

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tendril-run/tendril/internal/queue"
)

// answers is a queue that registers when it has given all of them.
type answers struct {
	queue.Queue
	left []error
}

func (a *answers) Register(context.Context) (queue.Registration, error) {
	if len(a.left) == 0 {
		return queue.Registration{ClusterName: "prod"}, nil
	}
	err := a.left[0]
	a.left = a.left[1:]
	return queue.Registration{}, err
}

// A database that may come back is waited for; what only people can change is not.
func TestRegistration(t *testing.T) {
	t.Parallel()
	away := &queue.Error{Kind: queue.Unavailable, Message: "away"}
	for name, tc := range map[string]struct {
		answers []error
		want    error
	}{
		"at once":              {},
		"after an outage":      {answers: []error{away, errors.New("the network's"), away}},
		"no such token":        {answers: []error{away, &queue.Error{Kind: queue.Unauthorized, Message: "no"}}, want: &queue.Error{Kind: queue.Unauthorized}},
		"refused for good":     {answers: []error{&queue.Error{Kind: queue.Refused, Code: "PT409", Message: "no"}}, want: &queue.Error{Kind: queue.Refused}},
		"another has its name": {answers: []error{&queue.Error{Kind: queue.Superseded, Code: "PT409", Message: "no"}}, want: &queue.Error{Kind: queue.Superseded}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				got, err := registration{queue: &answers{left: tc.answers}, log: slog.New(slog.DiscardHandler)}.await(t.Context())
				if tc.want == nil && (err != nil || got.ClusterName != "prod") {
					t.Errorf("await() = %+v, %v, want that it is registered", got, err)
				}
				if tc.want != nil && (err == nil || queue.KindOf(err) != queue.KindOf(tc.want)) {
					t.Errorf("await() = %v, want an error of the kind %v", err, queue.KindOf(tc.want))
				}
			})
		})
	}
}

// Who is asked to end before there was a database ends.
func TestRegistrationEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var left []error
		for range 100 {
			left = append(left, &queue.Error{Kind: queue.Unavailable, Message: "away"})
		}
		began := time.Now()
		if _, err := (registration{queue: &answers{left: left}, log: slog.New(slog.DiscardHandler)}).await(ctx); err == nil || time.Since(began) != time.Second {
			t.Errorf("await() = %v after %s, want an error when the context ended", err, time.Since(began))
		}
	})
}
