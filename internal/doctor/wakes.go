package doctor

import (
	"context"
	"errors"
	"strings"

	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/pgqueue"
)

// wakes says whether the agent is told of work, or has to ask for it.
func (d *doctor) wakes(ctx context.Context) verdict {
	switch {
	case strings.HasPrefix(d.Config.Queue.URL, "http"):
		return ok("over HTTPS the queue is polled")
	case d.Config.Queue.ListenURL == "off":
		return ok("switched off by queue.listen_url; the queue is polled")
	}
	err := pgqueue.Hears(ctx, pgqueue.Options{
		URL: d.Config.Queue.URL, ListenURL: d.Config.Queue.ListenURL, Agent: d.agent(), CallTimeout: each - grace,
	})
	if err == nil {
		return ok("the database's notifications arrive")
	}
	if e, is := errors.AsType[*queue.Error](err); is && e.Hint != "" {
		return warn(e.Hint, "%s; the queue would be polled only", e.Message)
	}
	return warn("check queue.listen_url", "%v; the queue would be polled only", err)
}
