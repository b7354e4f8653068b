package once

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/protocol"
	"github.com/tendril-run/tendril/provisioner"
)

// Answer is what a program answered.
type Answer struct {
	Response Response
	// Answered is false where there is no response. After a provision the machine may exist.
	Answered bool

	request string
	err     error
}

// Ask sends a request to a program that was started already and reads its response, until
// the end of its stdout. Mask gets every secret before Ask returns. An error is a
// [protocol.ViolationError], or the context's. Call Answer.Check once the program has ended.
func Ask(ctx context.Context, p protocol.Program, request Request, mask func(secrets []string)) (Answer, error) {
	answer := Answer{request: string(request.Action)}
	answer.err = answer.ask(ctx, p, request)
	if i := answer.Response.Instance; i != nil && i.RootPassword != "" && mask != nil {
		mask([]string{i.RootPassword})
	}
	return answer, answer.err
}

func (a *Answer) ask(ctx context.Context, p protocol.Program, request Request) error {
	text, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("write the request %s as JSON: %w", request.Action, err)
	}
	go func() {
		_, _ = p.In.Write(append(text, '\n')) // a program that reads nothing may answer
		_ = p.In.Close()
	}()
	type output struct {
		text []byte
		err  error
	}
	read := make(chan output, 1)
	go func() {
		text, err := io.ReadAll(io.LimitReader(p.Out, provisioner.MaxLine+1))
		read <- output{text, err}
	}()
	defer func() {
		_ = p.In.Close()
		_ = p.Out.Close()
	}()
	select {
	case <-ctx.Done():
		return fmt.Errorf("the provisioner gave no answer to %s: %w", request.Action, ctx.Err())
	case out := <-read:
		if out.err != nil {
			return fmt.Errorf("read the provisioner's answer to %s: %w", request.Action, out.err)
		}
		return a.parse(out.text)
	}
}

func (a *Answer) violation(kind protocol.Kind, action, problem string, args ...any) error {
	return &protocol.ViolationError{Kind: kind, Request: a.request, Problem: printable.Text(fmt.Sprintf(problem, args...)), Action: action}
}

// parse reads all that a program wrote. Errors quote none of it: it may have a password.
func (a *Answer) parse(text []byte) error {
	const alone = "write one JSON document to stdout and nothing else, and to stderr what is for people"
	trimmed := bytes.TrimSpace(text)
	switch {
	case len(text) > provisioner.MaxLine:
		return a.violation(protocol.LineTooLong, alone, "stdout has more than %d MiB", provisioner.MaxLine>>20)
	case len(trimmed) == 0:
		return a.violation(protocol.NoResult, "write a response, also after an error", "stdout is empty")
	case !utf8.Valid(text):
		return a.violation(protocol.NotUTF8, "write UTF-8 to stdout", "stdout is not UTF-8")
	}
	decoder := json.NewDecoder(bytes.NewReader(trimmed))
	var whole json.RawMessage
	if err := decoder.Decode(&whole); errors.Is(err, io.ErrUnexpectedEOF) {
		return a.violation(protocol.HalfLine, "write all of the document before you exit", "stdout ended in the middle of a JSON document")
	} else if err != nil {
		return a.violation(protocol.NotJSON, alone, "stdout is not JSON: %v", err)
	}
	if decoder.InputOffset() < int64(len(trimmed)) {
		return a.violation(protocol.AfterResult, alone, "there is text after the JSON document")
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(whole, &fields) != nil || fields["success"] == nil {
		return a.violation(protocol.BadValue, `write "success": true or "success": false`, "the response has no field success")
	}
	var response Response
	if err := json.Unmarshal(whole, &response); err != nil {
		var kind *json.UnmarshalTypeError
		field := "a field"
		if errors.As(err, &kind) {
			field = fmt.Sprintf("the field %q", kind.Field)
		}
		return a.violation(protocol.BadValue, "write it as docs/PROVISIONERS.md shows it", "%s of the response is of a wrong type", field)
	}
	response.Error = cut(response.Error)
	// What it has is kept, so that its password is masked even if something else is wrong.
	a.Response = response
	if err := a.check(response); err != nil {
		return err
	}
	a.Answered = true
	return nil
}

func (a *Answer) check(r Response) error {
	if !slices.Contains([]provisioner.ResultStatus{"", provisioner.ResultCompleted, provisioner.ResultPartial}, r.Status) {
		return a.violation(protocol.BadValue, "write completed or partial, or leave it out", "the status is %.40q", r.Status)
	}
	if !slices.Contains([]provisioner.HealthStatus{"", provisioner.Healthy, provisioner.Unhealthy, provisioner.HealthUnknown}, r.Health) {
		return a.violation(protocol.BadValue, "write healthy, unhealthy or unknown", "the health is %.40q", r.Health)
	}
	if !r.Success && r.Error == "" && a.request != string(HealthCheck) {
		return a.violation(protocol.BadValue, "write what failed into error", "the response is a failure without the field error")
	}
	if r.Success && a.request == string(Provision) && (r.Instance == nil || r.Instance.ExternalID == "") {
		return a.violation(protocol.BadValue, "write the machine's id in its cloud into instance.external_id", "the response is a success without instance.external_id")
	}
	if r.Instance == nil {
		return nil
	}
	id := r.Instance.ExternalID
	if len(id) > provisioner.MaxName || printable.Text(id) != id || strings.ContainsAny(id, "\t\n") {
		return a.violation(protocol.BadValue, "write letters, digits and punctuation only", "instance.external_id has control characters or more than %d bytes", provisioner.MaxName)
	}
	for field, address := range map[string]string{"ip_address": r.Instance.IPAddress, "ipv6_address": r.Instance.IPv6Address} {
		if _, err := netip.ParseAddr(address); address != "" && err != nil {
			return a.violation(protocol.BadValue, "write it as 192.0.2.1 or 2001:db8::1", "instance.%s is %.60q, which is no IP address", field, address)
		}
	}
	if r.Instance.SSHPort < 0 || r.Instance.SSHPort > 65535 {
		return a.violation(protocol.BadValue, "write a port from 1 to 65535, or leave it out", "instance.ssh_port is %d", r.Instance.SSHPort)
	}
	return nil
}

// cut makes a text printable, and as long as it may be.
func cut(text string) string {
	text = printable.Text(text)
	if len(text) > provisioner.MaxText {
		return strings.ToValidUTF8(text[:provisioner.MaxText-len("…")], "") + "…"
	}
	return text
}

// Check returns the error of the whole: that of Ask, told with the exit status, or that of an
// exit status which contradicts the response. The status is -1 for a program that was ended
// by a signal.
func (a Answer) Check(exit int) error {
	if exit == 0 || exit < 0 && a.Answered {
		return a.err
	}
	status := fmt.Sprintf("exit status %d", exit)
	if exit < 0 {
		status = "it was ended by a signal"
	}
	var v *protocol.ViolationError
	switch {
	case errors.As(a.err, &v) && (v.Kind == protocol.NoResult || v.Kind == protocol.HalfLine):
		told := *v
		told.Problem += " (" + status + ")"
		return &told
	case a.err == nil && a.Response.Success:
		return a.violation(protocol.ExitStatus, "exit with status 0 after a success", "the response is a success, and the program ended with %s", status)
	}
	return a.err
}
