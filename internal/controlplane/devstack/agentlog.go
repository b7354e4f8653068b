package devstack

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

const (
	// maxAgentLog is the size at which the agent's log is set aside at a start.
	maxAgentLog = 16 << 20
	// logEvery is how often the log is looked at.
	logEvery = 250 * time.Millisecond
)

// agentLog reads along in the agent's log and tells of errors.
type agentLog struct {
	path   string
	report func(string)
	stop   chan struct{}
	done   chan struct{}
}

// rotateLog sets a log that has grown large aside.
func rotateLog(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() < maxAgentLog {
		return nil
	}
	if err == nil {
		err = os.Rename(path, path+".1")
	}
	if err != nil {
		return fmt.Errorf("set the agent's log aside: %w", err)
	}
	return nil
}

// followLog reports the errors that are written from now on.
func followLog(path string, report func(string)) *agentLog {
	l := &agentLog{path: path, report: report, stop: make(chan struct{}), done: make(chan struct{})}
	var offset int64
	if info, err := os.Stat(path); err == nil {
		offset = info.Size()
	}
	go func() {
		defer close(l.done)
		l.run(offset)
	}()
	return l
}

// close reports what is left and ends.
func (l *agentLog) close() {
	close(l.stop)
	<-l.done
}

func (l *agentLog) run(offset int64) {
	tick := time.NewTicker(logEvery)
	defer tick.Stop()
	for ended := false; !ended; {
		select {
		case <-tick.C:
		case <-l.stop:
			ended = true
		}
		offset = l.read(offset)
	}
}

// read reports the errors among the whole lines from offset and returns where
// they end. A log that cannot be read now is read the next time.
func (l *agentLog) read(offset int64) int64 {
	file, err := os.Open(l.path)
	if err != nil {
		return offset
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		return offset
	}
	lines := bufio.NewReader(file)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return offset
		}
		offset += int64(len(line))
		if text := errorText(line); text != "" {
			l.report(text)
		}
	}
}

// errorText is what a line of the log says to people if it is an error, or no
// log line at all: a crash. Otherwise it is "".
func errorText(line []byte) string {
	line = bytes.TrimSpace(line)
	var entry map[string]any
	if json.Unmarshal(line, &entry) != nil {
		return string(line)
	}
	if entry["level"] != "ERROR" {
		return ""
	}
	text := fmt.Sprint(entry["msg"])
	for _, known := range []string{"time", "level", "msg"} {
		delete(entry, known)
	}
	details := make([]string, 0, len(entry))
	for _, name := range slices.Sorted(maps.Keys(entry)) {
		details = append(details, fmt.Sprintf("%s: %v", name, entry[name]))
	}
	if len(details) > 0 {
		text += " (" + strings.Join(details, ", ") + ")"
	}
	return text
}

// lastWords returns the end of the agent's log since offset, for an agent that
// did not come up.
func lastWords(path string, offset int64) string {
	const most = 2 << 10
	content, err := os.ReadFile(path)
	if err != nil || int64(len(content)) <= offset {
		return ""
	}
	content = bytes.TrimSpace(content[offset:])
	if len(content) > most {
		content = content[len(content)-most:]
	}
	var words []string
	for line := range bytes.Lines(content) {
		if text := errorText(line); text != "" {
			words = append(words, text)
		}
	}
	return strings.Join(words, "\n")
}
