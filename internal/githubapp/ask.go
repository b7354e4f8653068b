package githubapp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"
)

// token is one of an installation.
type token struct {
	text    string
	expires time.Time
}

// maxAnswer is the most that is read of an answer, in bytes.
const maxAnswer = 1 << 20

// contentsOnly is the right to read repositories, of all that the installation
// may do.
const contentsOnly = `{"permissions":{"contents":"read"}}`

// ask gets a new token.
func (a *App) ask(ctx context.Context, now time.Time) (token, error) {
	statement, err := a.sign(now)
	if err != nil {
		return token{}, err
	}
	address := a.options.API + "/app/installations/" + url.PathEscape(a.options.Installation) + "/access_tokens"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(contentsOnly))
	if err != nil {
		return token{}, fmt.Errorf("the address of GitHub's API: %w", err)
	}
	req.Header.Set("Accept", "application/vnd.github+json")
	req.Header.Set("Authorization", "Bearer "+statement)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "tendril")
	req.Header.Set("X-GitHub-Api-Version", "2022-11-28")
	res, err := a.client.Do(req)
	if err != nil {
		return token{}, fmt.Errorf("GitHub's API cannot be reached at %s: %w", a.options.API, withoutRequest(err))
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return token{}, fmt.Errorf("GitHub's API at %s broke off: %w", a.options.API, err)
	}
	if res.StatusCode != http.StatusCreated {
		return token{}, a.refused(res.StatusCode, body)
	}
	var answer struct {
		Token   string    `json:"token"`
		Expires time.Time `json:"expires_at"`
	}
	if json.Unmarshal(body, &answer) != nil || answer.Token == "" || answer.Expires.IsZero() {
		return token{}, fmt.Errorf("what answers at %s is not GitHub's API; check app_api_url", a.options.API)
	}
	return token{text: answer.Token, expires: answer.Expires}, nil
}

// withoutRequest leaves out what net/http puts before an error.
func withoutRequest(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}
	return err
}

// refused words an answer that is no success.
func (a *App) refused(status int, body []byte) error {
	var answer struct {
		Message string `json:"message"`
	}
	said := http.StatusText(status)
	if json.Unmarshal(body, &answer) == nil && answer.Message != "" {
		said = printable(answer.Message)
	}
	advice := "try again later"
	switch {
	case status == http.StatusUnauthorized:
		advice = "check that app_id is this App's, that the key is one of its keys and not deleted or expired, and that this machine's clock is right"
	case status == http.StatusNotFound:
		advice = "check app_id and app_installation_id, and that the App is still installed"
	case status == http.StatusForbidden:
		advice = "check that the installation is not suspended"
	case status == http.StatusUnprocessableEntity:
		advice = "give the App the repository permission Contents: read, and accept that in the installation"
	case status >= 300 && status < 400:
		advice = "check app_api_url: it answers with a redirect, which is not followed"
	}
	return fmt.Errorf("GitHub gives no token to App %s for installation %s (%d, %q); %s",
		a.options.ID, a.options.Installation, status, said, advice)
}

// printable is a foreign text in a message of ours.
func printable(text string) string {
	runes := bytes.Runes([]byte(text))
	for i, r := range runes {
		if !unicode.IsPrint(r) {
			runes[i] = ' '
		}
	}
	return string(runes[:min(len(runes), 200)])
}
