package tools

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/lazyregexp"
	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/provision"
)

type logInput struct {
	Run    int64  `json:"run" jsonschema:"the run's number"`
	From   string `json:"from,omitempty" jsonschema:"where to begin: tail (the last lines; this is what happens without from), start, or first_error"`
	Lines  int    `json:"lines,omitempty" jsonschema:"the most lines, from 1 to 1000; none: 100"`
	Search string `json:"search,omitempty" jsonschema:"only lines with this text in them, whatever its case"`
	Cursor string `json:"cursor,omitempty" jsonschema:"the next_cursor of the answer before, to go on after it"`
}

type logAnswer struct {
	Run        int64  `json:"run"`
	Status     string `json:"status"`
	Log        string `json:"log_data" jsonschema:"lines of the log; with a search, each after its number"`
	FirstLine  int    `json:"first_line,omitempty" jsonschema:"which line of the log the first one is, counted from 1; none: not known"`
	Lines      int    `json:"lines" jsonschema:"how many lines these are"`
	Found      *bool  `json:"found,omitempty" jsonschema:"whether there was an error, or a line with the text"`
	NextCursor string `json:"next_cursor,omitempty" jsonschema:"goes on after these lines"`
	Next       string `json:"next"`
}

const (
	usualLines = 100
	mostLines  = 1000
	// mostRead is how many bytes of a log one call looks through.
	mostRead = 32 << 20
	// mostLine is how many bytes of one line are shown.
	mostLine = 2000
	// before is how many lines before an error are shown with it.
	before = 5
	// fewestRows are asked for at first for the tail of a log, and at most mostTail bytes.
	fewestRows = 20
	mostTail   = 2 << 20
	// perRow is how many rows are asked for at once.
	perRow = 1000
)

// anError is a line that tells of an error, of Terraform or of most programs.
var anError = lazyregexp.New(`(?i)(^|[^a-z_])(error|fatal|panic|failed|failure|exception|traceback)([^a-z_]|$)`)

func readLog(ctx context.Context, c *call, in logInput) (logAnswer, error) {
	p, err := c.find(ctx, in.Run)
	if err != nil {
		return logAnswer{}, err
	}
	if in.Lines <= 0 {
		in.Lines = usualLines
	}
	in.Lines = min(in.Lines, mostLines)
	answer := logAnswer{Run: p.Number, Status: string(p.Status)}
	at, err := parsePosition(in.Cursor)
	if err != nil {
		return answer, err
	}
	switch {
	case in.From != "" && in.From != "tail" && in.From != "start" && in.From != "first_error":
		return answer, fmt.Errorf("from is %q; allowed: tail, start, first_error", cut(in.From, 60))
	case in.Search != "" || in.From == "first_error" && in.Cursor == "":
		err = c.search(ctx, p, in, at, &answer)
	case in.From == "start" || in.Cursor != "":
		err = c.forward(ctx, p, in, at, &answer)
	default:
		err = c.tail(ctx, p, in, &answer)
	}
	return answer, err
}

// shownLine is a line as it is shown: without escape sequences, and not too much of it.
func shownLine(line string) string {
	return lighten(cut(printable.Text(line), mostLine), heaviest*mostLine)
}

// position is where a reading goes on: after so many lines of the log, of which the first is
// in the row after Row, so many bytes into it.
type position struct {
	row   int64 // rows before it
	bytes int   // of the row after it
	line  int   // lines before it
}

func (p position) String() string { return fmt.Sprintf("%d.%d.%d", p.row, p.bytes, p.line) }

func parsePosition(cursor string) (p position, err error) {
	if cursor == "" {
		return p, nil
	}
	if _, err := fmt.Sscanf(cursor, "%d.%d.%d", &p.row, &p.bytes, &p.line); err != nil || p.row < 0 || p.bytes < 0 || p.line < 0 {
		return p, fmt.Errorf("cursor %q is none of a log: give the next_cursor of the answer before, or none", cut(cursor, 60))
	}
	return p, nil
}

// eachLine calls take with each whole line of a log from a position on, and where it ends.
// It stops when take says so, at the log's end, or after mostRead bytes, and says which.
func (c *call) eachLine(ctx context.Context, id uuid.UUID, from position, take func(line string, end position) bool) (ended bool, err error) {
	var line strings.Builder
	read, at := 0, from
	skip := from.bytes
	for read < mostRead {
		page, err := c.api.LogRange(ctx, id, at.row, 0, perRow)
		if err != nil {
			return false, err
		}
		for _, row := range page.Items {
			text := row.Text[min(skip, len(row.Text)):]
			offset := min(skip, len(row.Text))
			skip = 0
			read += len(text)
			for {
				one, rest, whole := strings.Cut(text, "\n")
				if line.Len() < mostLine { // what is longer is cut anyway
					line.WriteString(cut(one, mostLine))
				}
				if !whole {
					break
				}
				offset += len(one) + 1
				at.line++
				at.bytes = offset
				end := position{row.Seq - 1, offset, at.line}
				if offset >= len(row.Text) {
					end = position{row.Seq, 0, at.line}
				}
				if !take(line.String(), end) {
					return false, nil
				}
				line.Reset()
				text = rest
			}
			at.row, at.bytes = row.Seq, 0
		}
		if len(page.Items) == 0 || at.row >= page.LastSeq {
			if line.Len() > 0 { // the last line, without its end
				at.line++
				take(line.String(), at)
			}
			return true, nil
		}
	}
	return false, nil
}

// forward reads lines from a position on.
func (c *call) forward(ctx context.Context, p wire.Provision, in logInput, from position, answer *logAnswer) error {
	var text strings.Builder
	end := from
	full, room := false, mostPart
	ended, err := c.eachLine(ctx, p.ID, from, func(line string, after position) bool {
		line = shownLine(line)
		if answer.Lines >= in.Lines || room < weight(line) {
			full = true
			return false
		}
		room -= weight(line)
		text.WriteString(line + "\n")
		answer.Lines++
		end = after
		return true
	})
	if err != nil {
		return err
	}
	answer.Log = c.data(text.String())
	if from.line > 0 || from.row == 0 { // after a tail nobody has counted
		answer.FirstLine = from.line + 1
	}
	c.finish(p, answer, ended && !full, end)
	return nil
}

// finish says how to go on after lines of a log.
func (c *call) finish(p wire.Provision, answer *logAnswer, whole bool, end position) {
	switch {
	case !whole:
		answer.NextCursor = end.String()
		answer.Next = `There is more: call again with cursor set to next_cursor.`
	case p.Status == provision.Processing || p.Status == provision.Queued:
		answer.NextCursor = end.String()
		answer.Next = `The run goes on: call "wait", then call again with cursor set to next_cursor.`
	default:
		answer.Next = "This is the end of the log. " + c.nextStep(p)
	}
}

// tail reads the last lines.
func (c *call) tail(ctx context.Context, p wire.Provision, in logInput, answer *logAnswer) error {
	var rows []wire.LogRow
	var lines []string
	// A row has several lines, or a part of one.
	for wanted := fewestRows; ; wanted *= 4 {
		var err error
		if rows, err = c.lastRows(ctx, p.ID, wanted); err != nil {
			return err
		}
		var text strings.Builder
		for _, row := range rows {
			text.WriteString(row.Text)
		}
		if lines = nil; text.Len() > 0 {
			lines = strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
		}
		if len(rows) == 0 || rows[0].Seq == 1 {
			break
		}
		lines = lines[1:] // which may have begun before
		if len(lines) >= in.Lines || text.Len() > mostTail || wanted > mostLines {
			break
		}
	}
	room, first := mostPart, len(lines)
	for first > 0 && len(lines)-first < in.Lines {
		lines[first-1] = shownLine(lines[first-1])
		if room -= weight(lines[first-1]); room < 0 {
			break
		}
		first--
	}
	lines = lines[first:]
	answer.Lines = len(lines)
	if len(lines) > 0 {
		answer.Log = c.data(strings.Join(lines, "\n") + "\n")
	}
	var end position
	if len(rows) > 0 {
		end.row = rows[len(rows)-1].Seq
	}
	c.finish(p, answer, true, end)
	if answer.Lines > 0 {
		answer.Next += ` For what came before, call with from "start" or "first_error", or with a search.`
	}
	return nil
}

// lastRows are the last rows of a log.
func (c *call) lastRows(ctx context.Context, id uuid.UUID, wanted int) (rows []wire.LogRow, err error) {
	page, err := c.api.LogRange(ctx, id, 0, int64(wanted), perRow)
	for err == nil && len(page.Items) > 0 {
		rows = append(rows, page.Items...)
		rows = rows[max(0, len(rows)-4*mostLines):] // of a log that grows meanwhile
		last := rows[len(rows)-1].Seq
		if last >= page.LastSeq {
			break
		}
		// A page has about 1 MiB of text.
		page, err = c.api.LogRange(ctx, id, last, 0, perRow)
	}
	return rows, err
}

// search finds lines with a text, or the first that tells of an error and what is around it.
func (c *call) search(ctx context.Context, p wire.Provision, in logInput, from position, answer *logAnswer) error {
	var text strings.Builder
	var recent []string
	wanted := strings.ToLower(in.Search)
	found, full, room := false, false, mostPart
	end, line := from, from.line
	ended, err := c.eachLine(ctx, p.ID, from, func(one string, after position) bool {
		line++
		one = printable.Text(one)
		hit := wanted != "" && strings.Contains(strings.ToLower(one), wanted) || wanted == "" && (found || anError.MatchString(one))
		if !hit {
			if wanted == "" {
				recent = append(recent, shownLine(one))
				recent = recent[max(0, len(recent)-before):]
			}
			end = after
			return true
		}
		one = shownLine(one)
		if answer.Lines >= in.Lines || room < weight(one) {
			full = true
			return false
		}
		room -= weight(one)
		if !found {
			found = true
			answer.FirstLine = line - len(recent)
			for _, context := range recent {
				text.WriteString(context + "\n")
				answer.Lines++
				room -= weight(context)
			}
		}
		if wanted != "" {
			fmt.Fprintf(&text, "%d: ", line)
		}
		text.WriteString(one + "\n")
		answer.Lines++
		end = after
		return true
	})
	if err != nil {
		return err
	}
	answer.Found = &found
	answer.Log = c.data(text.String())
	c.finish(p, answer, ended && !full, end)
	if !found && ended {
		answer.Next = `No line matches. Call with from "tail" for the last lines. ` + c.nextStep(p)
	}
	return nil
}
