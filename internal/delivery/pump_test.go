package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/spool"
)

// live is a child and its agent's pump in one synctest bubble.
type live struct {
	t       *testing.T
	q       *memQueue
	file    *os.File
	tail    spool.Tail
	w       *spool.Writer
	wake    chan struct{}
	done    chan struct{}
	acks    []string
	retries int
	waits   waits
	cancel  context.CancelFunc
	ended   chan struct{}
	got     Delivered
	err     error
}

// ringer is a doorbell that wakes without a pipe.
type ringer chan struct{}

func (r ringer) Write(p []byte) (int, error) {
	select {
	case r <- struct{}{}:
	default:
	}
	return len(p), nil
}

func goLive(t *testing.T, fault func(string) error, resume bool) *live {
	t.Helper()
	file := newSpool(t)
	l := &live{t: t, q: &memQueue{fault: fault}, file: file, tail: newTail(t), wake: make(chan struct{}, 1), done: make(chan struct{}), ended: make(chan struct{})}
	l.w = spool.NewWriter(file, ringer(l.wake))
	p := NewPump(l.q, uuid.New(), file, PumpOptions{
		Resume: resume,
		Tail:   l.tail,
		Acked: func(n int64, refused *provision.Failure) {
			if refused == nil {
				l.acks = append(l.acks, fmt.Sprint(n))
			} else {
				l.acks = append(l.acks, fmt.Sprintf("%d %s: %s", n, refused.Code, refused.Message))
			}
		},
		OnRetry:  func(error) { l.retries++ },
		Observer: &l.waits,
	})
	ctx, cancel := context.WithCancel(t.Context())
	l.cancel = cancel
	go func() {
		defer close(l.ended)
		l.got, l.err = p.Run(ctx, l.wake, l.done)
	}()
	return l
}

// back ends what is wrong with the database.
func (l *live) back() {
	l.q.mu.Lock()
	defer l.q.mu.Unlock()
	l.q.fault = nil
}

// die ends the child and waits for the pump.
func (l *live) die() {
	l.t.Helper()
	_ = l.w.Close()
	close(l.done)
	<-l.ended
	l.cancel()
}

func (l *live) happened(want string) {
	l.t.Helper()
	synctest.Wait()
	if got := l.q.happened(); got != want {
		l.t.Errorf("the queue has %s, want %s", got, want)
	}
}

func (l *live) update(r provision.Report) {
	l.t.Helper()
	if err := l.w.Update(r); err != nil {
		l.t.Errorf("Update() = %v", err)
	}
}

func (l *live) updateAck(r provision.Report) {
	l.t.Helper()
	if _, err := l.w.UpdateAck(r); err != nil {
		l.t.Errorf("UpdateAck() = %v", err)
	}
}

func TestPumpDeliversAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := goLive(t, nil, false)
		write(t, l.w, provision.Stdout, "a\n")
		l.happened("chunk 1") // no time has passed
		write(t, l.w, provision.Stdout, "b\n")
		l.happened("chunk 1") // open
		time.Sleep(provision.FlushAfter)
		l.happened("chunk 1, chunk 2")
		write(t, l.w, provision.Stderr, "c\nd\n")
		l.update(processing(provision.StagePlan))
		l.happened("chunk 1, chunk 2, chunk 3, report plan")
		l.updateAck(processing(provision.StageApply))
		l.happened("chunk 1, chunk 2, chunk 3, report plan, report apply")
		write(t, l.w, provision.Stdout, "e\n")
		l.update(ended(provision.Success))
		l.die()
		l.happened("chunk 1, chunk 2, chunk 3, report plan, report apply, chunk 4, report SUCCESS")
		if l.err != nil || l.got.Result == nil || l.got.Result.Status != provision.Success {
			t.Errorf("Run() = %+v, %v, want SUCCESS", l.got, l.err)
		}
		if l.got.Lines != 5 || l.got.Bytes != 10 || l.got.NextChunk != 5 || l.got.Skipped != 0 {
			t.Errorf("Run() = %+v, want 5 lines, 10 bytes, next chunk 5", l.got)
		}
		if want := "[2]"; fmt.Sprint(l.acks) != want {
			t.Errorf("acks = %v, want %v", l.acks, want)
		}
	})
}

func TestPumpLooksWithoutADoorbell(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := goLive(t, nil, false)
		closeWriter(t, l.w) // which has written nothing
		l.w = spool.NewWriter(l.file, nil)
		time.Sleep(time.Hour)
		write(t, l.w, provision.Stdout, "a\n")
		time.Sleep(lookSeldom)
		l.happened("chunk 1")
		time.Sleep(time.Hour)
		close(l.wake) // the child's end of the pipe is closed
		synctest.Wait()
		write(t, l.w, provision.Stdout, "b\n")
		time.Sleep(lookSoon)
		l.happened("chunk 1, chunk 2")
		l.die()
	})
}

func TestPumpEndsTheOpenChunkOfADeadChild(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := goLive(t, nil, false)
		write(t, l.w, provision.Stdout, "a\n")
		write(t, l.w, provision.Stdout, "b\n")
		l.happened("chunk 1")
		close(l.done) // SIGKILL: the writer could not close its chunk
		<-l.ended
		l.happened("chunk 1, chunk 2")
		if l.err != nil || l.got.Result != nil || l.got.NextChunk != 3 {
			t.Errorf("Run() = %+v, %v, want no result, next chunk 3", l.got, l.err)
		}
		l.cancel()
		closeWriter(t, l.w)
	})
}

func TestPumpSendsWhatPiledUpInLargeCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := goLive(t, func(string) error { return errAway }, false)
		for range 400 {
			write(t, l.w, provision.Stdout, strings.Repeat("0123456789abcde\n", provision.ChunkTarget/16))
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if l.retries < 100 || l.retries > 250 {
			t.Errorf("%d retries in ten minutes, want one in 5 s or so", l.retries)
		}
		l.back()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := len(l.q.chunks); got != 400 {
			t.Errorf("%d chunks are stored, want 400", got)
		}
		if calls := len(l.q.appends) - l.retries; calls > 12 {
			t.Errorf("%d calls after the outage for 400 chunks, want at most 12", calls)
		}
		l.die()
		if want := int64(400 * provision.ChunkTarget); l.got.Bytes != want || l.got.Lines != want/16 {
			t.Errorf("Run() counts %d bytes, %d lines, want %d, %d", l.got.Bytes, l.got.Lines, want, want/16)
		}
	})
}

func TestPumpRetriesUntilItsContextEnds(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"append 1", "report apply", "report SUCCESS"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := goLive(t, always(call, errAway), false)
				write(t, l.w, provision.Stdout, "a\n")
				l.updateAck(processing(provision.StageApply))
				l.update(ended(provision.Success))
				time.Sleep(24 * time.Hour)
				l.cancel()
				<-l.ended
				if !errors.Is(l.err, context.Canceled) || l.got.Result != nil {
					t.Errorf("Run() = %+v, %v, want %v", l.got, l.err, context.Canceled)
				}
				l.die()
			})
		})
	}
}

// A server that is overloaded says when to come back: nothing comes before.
func TestPumpComesBackWhenItIsTold(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"append 1", "report plan"} {
		synctest.Test(t, func(t *testing.T) {
			l := goLive(t, always(call, &queue.Error{Kind: queue.Unavailable, Message: "too many requests", RetryAfter: 30 * time.Second}), false)
			write(t, l.w, provision.Stdout, "a\n")
			l.update(processing(provision.StagePlan))
			time.Sleep(10*time.Minute - time.Second)
			synctest.Wait()
			if l.retries != 20 {
				t.Errorf("%s failed %d times in 10 minutes, want 20: once in 30 s", call, l.retries)
			}
			l.back()
			l.update(ended(provision.Success))
			l.die()
		})
	}
}

// TestPumpIsQuickAgainAfterAnOutage: a call that succeeds ends the long waits.
func TestPumpIsQuickAgainAfterAnOutage(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"append 1", "report plan"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := goLive(t, always(call, errAway), false)
				if call == "append 1" {
					write(t, l.w, provision.Stdout, "a\n")
				} else {
					l.update(processing(provision.StagePlan))
				}
				time.Sleep(time.Hour)
				l.back()
				time.Sleep(2 * retrySeldom)
				synctest.Wait()
				l.q.mu.Lock()
				l.q.fault = once("report SUCCESS", errAway)
				l.q.mu.Unlock()
				l.update(ended(provision.Success))
				start := time.Now()
				l.die()
				if took := time.Since(start); l.got.Result == nil || took > 2*retrySoon {
					t.Errorf("one failure long after an outage takes %v, as long as the outage's last", took)
				}
			})
		})
	}
}

func TestPumpRepeatsWhatMayBeLost(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"append 1", "append 2", "report plan", "report apply", "report SUCCESS"} {
		for _, fault := range []error{errAway, errLostReply} {
			t.Run(call+" "+fault.Error(), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					l := goLive(t, once(call, fault), false)
					write(t, l.w, provision.Stdout, "a\n")
					l.update(processing(provision.StagePlan))
					write(t, l.w, provision.Stdout, "b\n")
					l.updateAck(processing(provision.StageApply))
					time.Sleep(2 * retrySoon) // the child waits for its answer
					synctest.Wait()
					l.update(ended(provision.Success))
					l.die()
					want := "chunk 1, report plan, chunk 2, report apply, report SUCCESS"
					if errors.Is(fault, errLostReply) && strings.HasPrefix(call, "report") {
						want = strings.Replace(want, call, call+", "+call, 1)
					}
					l.happened(want)
					if l.err != nil || l.got.Result == nil || l.retries != 1 {
						t.Errorf("Run() = %+v, %v after %d retries, want SUCCESS after 1", l.got, l.err, l.retries)
					}
				})
			})
		}
	}
}

func TestPumpTellsTheChildWhatIsRefused(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err  *queue.Error
		want provision.Code
	}{
		"a code of ours": {&queue.Error{Kind: queue.Refused, Reason: "tag_moved", Message: "the tag moved"}, provision.CodeTagMoved},
		"elsewhere":      {&queue.Error{Kind: queue.Refused, Reason: "workspace_elsewhere", Message: "m"}, provision.CodeWorkspaceElsewhere},
		"managed":        {&queue.Error{Kind: queue.Refused, Reason: "workspace_managed", Message: "m"}, provision.CodeWorkspaceElsewhere},
		"cancelled":      {&queue.Error{Kind: queue.CancelRequested, Reason: "cancel_requested", Message: "m"}, provision.CodeCancelled},
		"claim lost":     {&queue.Error{Kind: queue.ClaimLost, Reason: "claim_lost", Message: "m", Hint: "h"}, provision.CodeAgentLost},
		"anything else":  {&queue.Error{Kind: queue.Refused, Reason: "odd", Message: "m"}, provision.CodeInternal},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := goLive(t, always("report apply", tt.err), false)
				l.updateAck(processing(provision.StageApply))
				synctest.Wait()
				if got, want := fmt.Sprint(l.acks), fmt.Sprintf("[1 %s: %s]", tt.want, tt.err); got != want {
					t.Errorf("acks = %s, want %s", got, want)
				}
				write(t, l.w, provision.Stdout, "it goes on\n")
				l.update(ended(provision.Failed))
				l.die()
				l.happened("chunk 1, report FAILED")
				if l.got.Refused != 0 {
					t.Errorf("Refused = %d, want 0: the child was told", l.got.Refused)
				}
			})
		})
	}
}

func TestRefusalGoesThroughAPipe(t *testing.T) {
	t.Parallel()
	f := refusal(&queue.Error{Kind: queue.Refused, Reason: "tag_moved", Message: "m", Err: errors.New("cause")})
	line, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	var got provision.Failure
	if err := json.Unmarshal(line, &got); err != nil || got.Code != f.Code || got.Message != f.Message {
		t.Errorf("json.Unmarshal(%s) = %+v, %v", line, got, err)
	}
}

func TestPumpOnAnswersThatRepeatingDoesNotChange(t *testing.T) {
	t.Parallel()
	lost := &queue.Error{Kind: queue.ClaimLost, Message: "lost"}
	superseded := &queue.Error{Kind: queue.Superseded, Message: "superseded"}
	for name, tt := range map[string]struct {
		call   string
		err    error
		ends   bool
		stored string
	}{
		"claim lost, lines":       {"append 2", lost, true, "chunk 1, report plan"},
		"claim lost, progress":    {"report plan", lost, false, "chunk 1, chunk 2, report SUCCESS"},
		"refused, progress":       {"report plan", &queue.Error{Kind: queue.Refused, Message: "no"}, false, "chunk 1, chunk 2, report SUCCESS"},
		"superseded, progress":    {"report plan", superseded, true, "chunk 1"},
		"token revoked, progress": {"report plan", &queue.Error{Kind: queue.Unauthorized, Message: "who?"}, true, "chunk 1"},
		"claim lost, end":         {"report SUCCESS", lost, true, "chunk 1, report plan, chunk 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := goLive(t, always(tt.call, tt.err), false)
				write(t, l.w, provision.Stdout, "a\n")
				l.update(processing(provision.StagePlan))
				write(t, l.w, provision.Stdout, "b\n")
				l.update(ended(provision.Success))
				l.die()
				l.happened(tt.stored)
				switch {
				case tt.ends && (!errors.Is(l.err, tt.err) || l.got.Result != nil):
					t.Errorf("Run() = %+v, %v, want %v", l.got, l.err, tt.err)
				case !tt.ends && (l.err != nil || l.got.Result == nil || l.got.Refused != 1 || !errors.Is(l.got.Refusal, tt.err)):
					t.Errorf("Run() = %+v, %v, want SUCCESS and one refusal", l.got, l.err)
				}
				if l.retries != 0 {
					t.Errorf("%d retries, want 0", l.retries)
				}
			})
		})
	}
}
