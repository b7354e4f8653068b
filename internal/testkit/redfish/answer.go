package redfish

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// maxBody bounds what a client may send, in bytes.
const maxBody = 1 << 20

// resource is a JSON object of the service.
type resource map[string]any

// link refers to another resource.
func link(path string) resource { return resource{"@odata.id": path} }

// links refers to several.
func links(paths ...string) []resource {
	all := make([]resource, len(paths))
	for i, each := range paths {
		all[i] = link(each)
	}
	return all
}

// collection is a list of resources.
func collection(path, kind, name string, members ...string) resource {
	return resource{
		"@odata.id": path, "@odata.type": "#" + kind + "." + kind, "Name": name,
		"Members": links(members...), "Members@odata.count": len(members),
	}
}

// status is the state of a part. Health is OK, Warning or Critical.
func status(health string) resource {
	return resource{"State": "Enabled", "Health": health, "HealthRollup": health}
}

// problem is an error that a client is told, by a message of DMTF's registry Base.
type problem struct {
	status        int
	message, text string
	args          []string
}

func (p *problem) Error() string { return p.text }

func unknown(what, name string) error {
	return &problem{http.StatusNotFound, "ResourceNotFound",
		fmt.Sprintf("The requested resource of type %s named '%s' was not found.", what, name), []string{what, name}}
}

func wrongValue(property string, value any, allowed ...string) error {
	text := fmt.Sprintf("The value '%v' for the property %s is not in the list of acceptable values.", value, property)
	if len(allowed) > 0 {
		text += " Acceptable: " + strings.Join(allowed, ", ") + "."
	}
	return &problem{http.StatusBadRequest, "PropertyValueNotInList", text, []string{fmt.Sprint(value), property}}
}

func missing(action, parameter string) error {
	return &problem{http.StatusBadRequest, "ActionParameterMissing",
		fmt.Sprintf("The action %s requires the parameter %s to be present in the request body.", action, parameter), []string{action, parameter}}
}

// handler answers a request by an error or by itself.
type handler func(w http.ResponseWriter, r *http.Request) error

// ServeHTTP implements [http.Handler].
func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	err := h(w, r)
	if err == nil {
		return
	}
	var p *problem
	if !errors.As(err, &p) {
		p = &problem{http.StatusInternalServerError, "InternalError",
			"The request failed due to an internal service error.  The service is still operational. " + err.Error(), nil}
	}
	fail(w, p)
}

// fail answers an error.
func fail(w http.ResponseWriter, p *problem) {
	const registry = "Base.1.15."
	body := resource{"error": resource{
		"code": registry + p.message, "message": p.text,
		"@Message.ExtendedInfo": []resource{{
			"@odata.type": "#Message.v1_1_2.Message", "MessageId": registry + p.message, "Message": p.text,
			"MessageArgs": append([]string{}, p.args...), "MessageSeverity": "Critical", "Severity": "Critical",
			"Resolution": "None.",
		}},
	}}
	if p.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Basic realm="Redfish"`)
	}
	write(w, p.status, body)
}

// show answers a resource, with the tag by which a client may change it.
func show(w http.ResponseWriter, res resource) error {
	w.Header().Set("ETag", tag(res))
	write(w, http.StatusOK, res)
	return nil
}

// tag is the version of a resource.
func tag(res resource) string {
	text, err := json.Marshal(res)
	if err != nil {
		panic(fmt.Sprintf("a resource that is no JSON: %v", err)) // they are made here
	}
	sum := sha256.Sum256(text)
	return `"` + hex.EncodeToString(sum[:8]) + `"`
}

func write(w http.ResponseWriter, code int, body resource) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // of a client that has left
}

// done answers that a change was made.
func done(w http.ResponseWriter) error {
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// read decodes what a client sends; nothing at all is an empty object.
func read(r *http.Request, into any) error {
	text, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxBody))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return &problem{http.StatusRequestEntityTooLarge, "GeneralError", fmt.Sprintf("The request has more than %d bytes.", maxBody), nil}
	}
	if err != nil {
		return fmt.Errorf("reading the request: %w", err)
	}
	if len(text) == 0 {
		return nil
	}
	if err := json.Unmarshal(text, into); err != nil {
		return &problem{http.StatusBadRequest, "MalformedJSON", "The request body submitted was malformed JSON and could not be parsed by the receiving service: " + err.Error(), nil}
	}
	return nil
}

// unchanged says whether a change is made to what the client has seen.
func unchanged(r *http.Request, now resource) error {
	if seen := r.Header.Get("If-Match"); seen != "" && seen != "*" && seen != tag(now) {
		return &problem{http.StatusPreconditionFailed, "PreconditionFailed", "The ETag supplied did not match the ETag required to change this resource.", nil}
	}
	return nil
}
