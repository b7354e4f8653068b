package logstream

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

// heard deals with a spool of which the database wants no line any more. Where
// its run has ended with a plan that awaits approval, and somebody has said yes,
// another claim has followed, and the database has had all of it: it is asked by
// that report, which it knows again. Of any other spool it returns the error.
func (p *Pump) heard(ctx context.Context, refused error) error {
	if queue.KindOf(refused) != queue.ClaimLost || !p.childDead() {
		return refused
	}
	p.reader.Final()
	var last Record
	for {
		r, err := p.reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return errors.Join(refused, err)
		}
		last = r
	}
	if last.Update == 0 || last.Report.Status != provision.AwaitingApproval {
		return refused
	}
	for {
		err := p.report(ctx, last)
		switch {
		case err == nil:
			p.out.Result = last.Report
			return nil
		case queue.KindOf(err) != queue.Unavailable:
			return refused
		}
		if err := p.pause(ctx, fmt.Errorf("report: %w", err)); err != nil {
			return err
		}
	}
}
