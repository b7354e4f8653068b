package agent

import (
	"context"
	"log/slog"
	"time"

	"github.com/tendril-run/tendril/internal/agentkey"
	"github.com/tendril-run/tendril/internal/queue"
)

// keyRotation replaces the agent's own key when it has signed long enough. A rotation that was
// cut short is ended at the next start, before anything signs.
type keyRotation struct {
	dir   string
	after time.Duration // 0: never
	queue queue.Queue
	log   *slog.Logger

	again time.Time // when to look next
	told  string    // what the log says last of a key that could not be replaced
}

// rotationEvery is how often the agent looks how old its key is.
const rotationEvery = time.Minute

// rotate replaces the key if it is due.
func (k *keyRotation) rotate(ctx context.Context, now time.Time) {
	holder, is := k.queue.(queue.KeyHolder)
	if !is || k.after == 0 || now.Before(k.again) {
		return
	}
	k.again = now.Add(rotationEvery)
	made, err := agentkey.Made(k.dir)
	if err != nil || now.Sub(made) < k.after {
		return // an agent that has no key shows a token
	}
	switch err := k.replace(ctx, holder); {
	case ctx.Err() != nil:
	case err == nil:
		k.told = ""
	case k.told != err.Error():
		k.told = err.Error()
		k.log.Warn("the agent's key is not replaced; trying again each minute: " + k.told)
	}
}

func (k *keyRotation) replace(ctx context.Context, holder queue.KeyHolder) error {
	next, err := agentkey.Next(k.dir)
	if err != nil {
		return err
	}
	if err := holder.RotateKey(ctx, next.Private()); err != nil {
		return err
	}
	if err := agentkey.Promote(k.dir); err != nil {
		return err
	}
	k.log.Info("the agent signs with a new key", "fingerprint", next.Words(), "sha256", next.Fingerprint())
	return nil
}
