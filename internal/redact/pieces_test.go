package redact

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/tendril-run/tendril/internal/testkit/formtest"
)

// event is what the engine hands over of one resource's provisioner, after a pause.
type event struct {
	resource int
	text     string
	pause    time.Duration
}

// maskedLog is a log that takes lines from several Pieces.
type maskedLog struct {
	mu     sync.Mutex
	stream *Stream
	text   strings.Builder
}

func (l *maskedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(l.stream.Mask(p))
	return len(p), nil
}

func (l *maskedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// printEvents returns what the log has of events.
func printEvents(t *testing.T, secrets []string, resources int, events []event) string {
	t.Helper()
	var s Secrets
	s.Add(secrets...)
	log := &maskedLog{stream: s.Stream()}
	var all []*Pieces
	for i := range resources {
		all = append(all, NewPieces(&s, fmt.Sprintf("r[%d]", i), log))
	}
	for _, e := range events {
		time.Sleep(e.pause)
		all[e.resource].Piece(e.text)
	}
	for _, one := range all {
		one.Close()
	}
	log.text.Write(log.stream.Flush())
	return log.String()
}

// printedBy joins what the log has of one resource.
func printedBy(log string, resource int) string {
	var b strings.Builder
	for line := range strings.Lines(log) {
		if text, ok := strings.CutPrefix(line, fmt.Sprintf("r[%d]: ", resource)); ok {
			b.WriteString(strings.TrimSuffix(text, "\n"))
		}
	}
	return b.String()
}

func TestPieces(t *testing.T) {
	t.Parallel()
	const long = time.Second
	quick := func(texts ...string) (all []event) {
		for _, text := range texts {
			all = append(all, event{text: text})
		}
		return all
	}
	slow := func(texts ...string) (all []event) {
		for _, text := range texts {
			all = append(all, event{text: text, pause: long})
		}
		return all
	}
	for name, test := range map[string]struct {
		events []event
		want   string
	}{
		"in one":                   {quick("pw=hunter2 and"), "r[0]: pw=*** and\n"},
		"in two":                   {quick("pw=hun", "ter2 and"), "r[0]: pw=***\nr[0]:  and\n"},
		"in two, slowly":           {slow("pw=hunt", "er2 and"), "r[0]: pw=\nr[0]: ***\nr[0]:  and\n"},
		"three bytes, slowly":      {slow("pw=hun", "ter2 and"), "r[0]: pw=hun\nr[0]: *** and\n"},
		"byte by byte":             {quick(strings.Split("hunter2", "")...), "r[0]: ***\n"},
		"byte by byte, slowly":     {slow(strings.Split("hunter2", "")...), "r[0]: h\nr[0]: u\nr[0]: n\nr[0]: ***\n"},
		"a space that is stripped": {quick("it is correct", "horse, yes"), "r[0]: it is ***\nr[0]: , yes\n"},
		"a space that is not":      {quick("it is correct", " horse, yes"), "r[0]: it is ***\nr[0]: , yes\n"},
		"not quite":                {quick("pw=hun", "ger", "hunter", "1"), "r[0]: pw=hun\nr[0]: ger\nr[0]: hunter\nr[0]: 1\n"},
		"not quite, slowly":        {slow("pw=hunter", "1", ""), "r[0]: pw=\nr[0]: hunter\nr[0]: 1\nr[0]: \n"},
		"overlapping":              {quick("x correct ho", "rsehunt", "er2"), "r[0]: x ***\nr[0]: ***\n"},
		"never the rest":           {slow("pw=hunte", "d"), "r[0]: pw=\nr[0]: hunte\nr[0]: d\n"},
		"at the end":               {slow("pw=hunte"), "r[0]: pw=hunte\n"},
		"of a shape":               {slow("token ghp_0123456789", "0123456789012345678901234567 x"), "r[0]: token \nr[0]: ***\nr[0]:  x\n"},
		"an address":               {slow("see http://localhost:8080", "and wait"), "r[0]: see http://localhost:8080\nr[0]: and wait\n"},
		"a ruler":                  {slow("----------", "-----BEGIN"), "r[0]: ----------\nr[0]: -----BEGIN\n"},
		"lines":                    {quick("one\r\ntwo\n", "", "three"), "r[0]: one\nr[0]: two\nr[0]: \nr[0]: three\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				if got := printEvents(t, []string{"hunter2", "correct horse"}, 1, test.events); got != test.want {
					t.Errorf("the log has\n%swant\n%s", got, test.want)
				}
			})
		})
	}
}

// A line is shown at once where nothing in it may be a secret, else after
// joinFor, whatever follows.
func TestPiecesWaitAsLongAsTheyMust(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s Secrets
		s.Add("Qwerty")
		log := &maskedLog{stream: s.Stream()}
		p := NewPieces(&s, "a", log)
		defer p.Close()
		want := func(text string) {
			t.Helper()
			synctest.Wait()
			if got := log.String(); got != text {
				t.Fatalf("the log has %q, want %q", got, text)
			}
		}
		p.Piece("done")
		want("a: done\n")
		p.Piece("FAQ")
		want("a: done\n")
		time.Sleep(joinFor)
		want("a: done\na: FAQ\n")
		p.Piece("done")
		want("a: done\na: FAQ\na: done\n")
	})
}

// FuzzPieces: a secret in any form, cut anywhere, with any pauses, among the
// events of another resource, is never in the log, and all else is, in order.
func FuzzPieces(f *testing.F) {
	for i := range uint64(40) {
		f.Add("correct horse & battery/stäple+?", i)
		f.Add("0123456789abcdefghijklmnopqrstuvwxyz~!@#$%^&*()_+0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", i)
		f.Add("-----BEGIN KEY-----\nq w<e>rt\"z\\u\n-----END KEY-----", i)
		f.Add("a  b\tc   d e", i)
		f.Add("${not} %{hcl}", i)
		f.Add("пароль €uro", i)
	}
	f.Fuzz(func(t *testing.T, secret string, seed uint64) {
		secret = strings.TrimSpace(cleanString(secret))
		if len(squeezed(secret)) < 8 || len(secret) > 512 || strings.ContainsAny(secret, "*\x01\x02"+replacement) {
			return
		}
		random := rand.New(rand.NewPCG(seed, 3))
		var all []string
		for form := range formtest.All(secret) {
			if len(form) >= minEncoded {
				all = append(all, form)
			}
		}
		slices.Sort(all)
		synctest.Test(t, func(t *testing.T) {
			form := all[random.IntN(len(all))]
			// Around it stands what no form and no token begins or ends with.
			texts := []string{"\x01\x02" + form + "\x02\x01", "\x01\x02" + strings.Repeat("\x02", 200) + form + "\x02\x01"}
			var queues [2][]string
			for i, text := range texts {
				queues[i] = cutAsEngine(random, text)
			}
			var events []event
			for len(queues[0])+len(queues[1]) > 0 {
				i := random.IntN(2)
				if len(queues[i]) == 0 {
					continue
				}
				pause := []time.Duration{0, 0, 50 * time.Millisecond, joinFor, 2 * joinFor}[random.IntN(5)]
				events = append(events, event{resource: i, text: queues[i][0], pause: pause})
				queues[i] = queues[i][1:]
			}
			log := printEvents(t, []string{secret}, 2, events)
			for i, text := range texts {
				before, _, _ := strings.Cut(text, form)
				got := printedBy(log, i)
				rest, ok := strings.CutPrefix(got, before)
				rest, ok2 := strings.CutSuffix(rest, "\x02\x01")
				if !ok || !ok2 {
					t.Fatalf("resource %d has %q of %q, want all that is no secret\n%+v", i, got, text, events)
				}
				// Three bytes may be shown before a pause, or any of a ruler.
				shown := strings.TrimRight(rest, "*") // once for each line that it is hidden from
				if shown == rest || len(strings.TrimLeft(squeezed(shown), "-")) >= minSecret || !strings.HasPrefix(squeezed(form), strings.TrimRight(squeezed(shown), replacement)) {
					t.Fatalf("resource %d has %q of %q, want it hidden\n%+v", i, got, text, events)
				}
			}
		})
	})
}

func squeezed(text string) string {
	out, _ := dropSpace(nil, nil, []byte(text))
	return string(out)
}

// cutAsEngine cuts a text as the engine does: without white space at the end of
// a piece, and without empty pieces.
func cutAsEngine(random *rand.Rand, text string) (all []string) {
	most := 1 + random.IntN(1+random.IntN(60))
	for len(text) > 0 {
		n := min(len(text), 1+random.IntN(most))
		for piece := range strings.Lines(text[:n]) {
			piece = cleanString(piece) // of a rune that was cut JSON has U+FFFD for each byte
			if piece = strings.TrimRightFunc(piece, unicode.IsSpace); piece != "" {
				all = append(all, piece)
			}
		}
		text = text[n:]
	}
	return all
}
