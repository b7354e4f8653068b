package console

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
)

// flash is what the next page tells: how something went that a form asked for.
type flash struct {
	Kind string `json:"k"` // success, info, warning or error
	Text string `json:"t"`
}

const flashCookie = "trellis_flash"

// redirect answers a form with the page to go to, which tells what was done.
func (c *console) redirect(w http.ResponseWriter, r *request, to string, f flash) {
	if f.Text != "" {
		value, _ := json.Marshal(f) // strings can be
		r.jar.Set(w, r.Request, flashCookie, base64.RawURLEncoding.EncodeToString(value), 60)
	}
	http.Redirect(w, r.Request, to, http.StatusSeeOther)
}

// takeFlash returns what the page before left to tell, once.
func takeFlash(w http.ResponseWriter, r *request) *flash {
	left := r.jar.Get(r.Request, flashCookie)
	if left == "" || r.Header.Get("HX-Request") != "" {
		return nil
	}
	r.jar.Set(w, r.Request, flashCookie, "", -1)
	f := &flash{}
	value, err := base64.RawURLEncoding.DecodeString(left)
	if err != nil || json.Unmarshal(value, f) != nil || f.Text == "" {
		return nil
	}
	return f
}
