package ironic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/tendril-run/tendril/internal/lazyregexp"
	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/provision"
)

// class is a kind of answer that is no success. docs/MACHINES.md has the same table.
type class struct {
	// name is how the table calls it.
	name string
	// tried says for how long a request is tried again; "": not at all.
	tried string
	// does is what a person does about it.
	does string
}

func (c *class) passes() bool { return c.tried != "" }

// The classes. What only asks how a deployment goes is tried for ten times as long.
var (
	classLocked   = &class{"The server is locked by another request (409)", "3 min", "wait until the other request ends; `baremetal node show SERVER -f value -c reservation` names the conductor"}
	classNobody   = &class{"No conductor is there or free (503, or 400 \"no conductor\")", "3 min", "start ironic-conductor, and see that `baremetal conductor list` shows it as alive"}
	classBroken   = &class{"Ironic fails (500, 502, 504, 429)", "3 min", "read the log of ironic-api at that time"}
	classAway     = &class{"No answer: refused, cut off, too slow", "3 min", "check that Ironic runs, and that this agent reaches the url of the pool"}
	classPage     = &class{"An answer that is no JSON, such as a page in HTML", "3 min", "check that the url leads to Ironic itself, and to no page in front of it"}
	classDenied   = &class{"The credentials are refused (401)", "", "write valid credentials into the pool's token_file"}
	classMay      = &class{"It is not allowed (403)", "", "give the agent's user the role admin in Ironic, or unset `protected` of the server"}
	classMissing  = &class{"There is no such thing (404)", "", "check the name or id"}
	classConflict = &class{"It exists already, or is in use (409)", "", "check who uses it"}
	classRefused  = &class{"The request is refused (400, 406)", "", "read the reason; it is most often a setting of the template's block ironic, or of the server"}
	classRedirect = &class{"A redirect, which is not followed", "", "check that the url leads to Ironic itself"}
	classLarge    = &class{"An answer of more than 16 MiB, or a list without end", "", "check that the url leads to Ironic"}
	classAlien    = &class{"It is not Ironic, or one of another age", "", "check the url; the API must have the version 1.56"}
)

// classes are all of them, in the order of the table.
var classes = []*class{classLocked, classNobody, classBroken, classAway, classPage, classDenied, classMay, classMissing, classConflict, classRefused, classRedirect, classLarge, classAlien}

// problem is an answer that is no success.
type problem struct {
	class  *class
	what   string // was tried
	status int
	text   string
	err    error
}

func (p *problem) Error() string {
	text := p.text
	if p.status != 0 {
		text = fmt.Sprintf("Ironic answers %d: %s", p.status, text)
	}
	if p.what != "" {
		text = p.what + ": " + text
	}
	return text + "; " + p.class.does
}

// Unwrap says that nothing is known where Ironic did not answer as it should.
func (p *problem) Unwrap() []error {
	var all []error
	if p.class != classMissing && p.class != classConflict && p.class != classRefused && p.class != classLocked {
		all = append(all, pool.ErrUnreachable)
	}
	if p.err != nil {
		all = append(all, p.err)
	}
	return all
}

// is reports whether an error is of a class.
func is(err error, c *class) bool {
	p, has := errors.AsType[*problem](err)
	return has && p.class == c
}

// explain makes an error of gophercloud's a problem.
func (c *client) explain(ctx context.Context, what string, err error) error {
	if given, is := errors.AsType[*problem](err); is {
		given.what = what
		return given
	}
	if errors.Is(err, pool.ErrForeign) { // Ironic has answered
		return fmt.Errorf("%s: %w", what, err)
	}
	p := &problem{class: classAway, what: what, err: err}
	var answer gophercloud.ErrUnexpectedResponseCode
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	var sent *url.Error
	switch {
	case errors.Is(err, errTooLarge):
		p.class, p.text, p.err = classLarge, errTooLarge.Error(), nil
	case errors.As(err, &answer):
		p.status, p.text = answer.Actual, faultOf(answer.Body)
		p.class, p.err = classOf(answer.Actual, answer.Body, p.text), nil
		switch {
		case p.class == classRedirect:
			p.text = "a redirect"
		case !json.Valid(answer.Body) && len(answer.Body) > 0:
			p.text = "something that is no JSON"
		}
	case errors.As(err, &syntax), errors.As(err, &kind):
		p.class, p.text, p.err = classPage, "the answer is no JSON of Ironic's", nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	case errors.As(err, &sent):
		p.err = sent.Err // without the address, which is long
		p.text = clean(sent.Err.Error())
		if sent.Timeout() {
			p.text = fmt.Sprintf("no complete answer within %s", c.config.Timeout)
		}
		if strings.Contains(p.text, "certificate") {
			p.class = classCertificate
		}
	case errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF):
		p.text = "the answer was cut off"
	default:
		p.text = clean(err.Error())
	}
	return p
}

// classCertificate is not in the table of Ironic's answers: nothing was asked.
var classCertificate = &class{"The server's certificate is not trusted", "", "set ca_file in [[pools]] to the certificate of the authority that signed it, or fingerprint to its SHA-256"}

var (
	noConductor = lazyregexp.New(`(?i)no (valid host|conductor)|conductor service .* (cannot|could not)|lack of free conductor|no hardware type|could not find a conductor`)
	// Ironic answers 500 where what it has checked is wrong, such as a server without a rescue interface.
	invalid  = lazyregexp.New(`(?i)^failed to (un)?rescue .*validation failed`)
	lockedBy = lazyregexp.New(`(?i)is locked by host|reserved by|NodeLocked|is currently being (created|updated)`)
)

// classOf is the class of an answer by its status, and by what Ironic says.
func classOf(status int, body []byte, text string) *class {
	switch {
	case status >= 300 && status < 400:
		return classRedirect
	case status == http.StatusUnauthorized:
		return classDenied
	case !json.Valid(body) && len(strings.TrimSpace(string(body))) > 0 && status != http.StatusBadGateway && status != http.StatusServiceUnavailable && status != http.StatusGatewayTimeout:
		return classPage
	case status == http.StatusServiceUnavailable || noConductor.MatchString(text):
		return classNobody
	case status == http.StatusConflict && lockedBy.MatchString(text):
		return classLocked
	case status == http.StatusConflict:
		return classConflict
	case invalid.MatchString(text):
		return classRefused
	case status >= 500 || status == http.StatusTooManyRequests || status == http.StatusRequestTimeout:
		return classBroken
	case status == http.StatusForbidden:
		return classMay
	case status == http.StatusNotFound:
		return classMissing
	}
	return classRefused
}

// faultOf is what Ironic says in the body of an error: an object, or a text that is one.
func faultOf(body []byte) string {
	var answer struct {
		Message json.RawMessage `json:"error_message"`
		Error   struct {
			Message string `json:"message"` // Keystone's
		} `json:"error"`
	}
	if json.Unmarshal(body, &answer) != nil {
		return clean(string(body[:min(len(body), 4<<10)]))
	}
	inner := []byte(answer.Message)
	var text string
	if json.Unmarshal(inner, &text) == nil {
		inner = []byte(text)
	}
	var fault struct {
		Text string `json:"faultstring"`
	}
	switch {
	case json.Unmarshal(inner, &fault) == nil && fault.Text != "":
		return clean(fault.Text)
	case text != "":
		return clean(text)
	case answer.Error.Message != "":
		return clean(answer.Error.Message)
	}
	return clean(string(body[:min(len(body), 4<<10)]))
}

// fault is what a server's last_error or fault means. docs/MACHINES.md has the same table.
type fault struct {
	name string
	says *lazyregexp.Regexp
	// happens is what is done about it, does what a person does.
	happens, does string
	// again says that a deployment is begun again.
	again bool
	code  provision.Code
}

// faults are looked through in order; the last one is any other.
var faults = []fault{
	{"The conductor ended during the deployment", lazyregexp.New(`(?i)can't be resumed by conductor|conductor .*(restart|took over|went offline)|taken over`), "deployed again, 3 times at most", "see why ironic-conductor ended", true, ""},
	{"The image can't be fetched, or differs from its checksum", lazyregexp.New(`(?i)image.*(not found|could not be|can't be|cannot be|failed|invalid|checksum|inaccessible|missing|ref)|checksum.*(mismatch|fail|match)|failed to (download|fetch|cache).*image|HTTP (code )?40[34]|InsertMedia returned code 400|MissingAtURI|CouldNotEstablishConnection`), "the machine failed", "check source and checksum of the image in [[pools.images]], and that Ironic's conductor reaches it", false, "image_not_found"},
	{"The BMC refuses its credentials", lazyregexp.New(`(?i)(authenticat|authoriz|password|credential|AccessError|HTTP 401|returned code 40[13]|SessionService)`), "the machine failed", "correct the BMC's user and password in the server's driver_info", false, "server_not_available"},
	{"The BMC can't be reached, or the power can't be switched", lazyregexp.New(`(?i)power (failure|state)|bmc|ipmi|redfish|failed to (set|get|change).*power|connect`), "the machine failed", "check the BMC's address in driver_info, and that Ironic's conductor reaches it", false, "server_not_available"},
	{"The server does not call back in time", lazyregexp.New(`(?i)timeout reached.*call ?back|heartbeat`), "the machine failed", "read the server's console: most often it does not boot from the network, or does not reach Ironic's API", false, ""},
	{"Somebody ended the deployment", lazyregexp.New(`(?i)abort`), "the machine failed", "deploy again", false, ""},
	{"A deploy or clean step fails", lazyregexp.New(`(?i)step`), "the machine failed", "check bios, raid and deploy_steps of the template's block ironic", false, ""},
	{"Any other error", lazyregexp.New(``), "the machine failed", "read the log of ironic-conductor", false, ""},
}

// faultIn is what an error of Ironic's about a server means.
func faultIn(text string) fault {
	for _, f := range faults {
		if f.says.MatchString(text) {
			return f
		}
	}
	return faults[len(faults)-1]
}

func asProblem(err error) (*problem, bool) {
	return errors.AsType[*problem](err)
}
