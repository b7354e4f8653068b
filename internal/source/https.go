package source

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/transport"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
)

// httpsSession is go-git's, over a client that trusts less than it does.
type httpsSession struct {
	transport.UploadPackSession
	idle func()
}

func (s *httpsSession) Close() error {
	defer s.idle()
	return s.UploadPackSession.Close()
}

func (s *Source) openHTTPS(a address) (session, error) {
	trust := newTrust(s.authorities, s.dial)
	client := &http.Client{
		Transport: &guard{next: &identify{trust, s}, maxRefs: s.limits.refs},
		// GitLab redirects to the name with .git, GitHub to a repository's new
		// name: fine, where the policy allows the target as well.
		CheckRedirect: func(req *http.Request, _ []*http.Request) error {
			target := repositoryOf(req.URL)
			if _, err := s.allow.permit(target); err != nil {
				return &redirectError{to: redact(target), refusal: err}
			}
			return nil
		},
	}
	endpoint := &transport.Endpoint{Protocol: a.Scheme, Host: a.Host, Path: a.DialPath}
	if a.Port != "" {
		port, err := strconv.Atoi(a.Port)
		if err != nil {
			return nil, fmt.Errorf("port of %s: %w", a, err)
		}
		endpoint.Port = port
	}
	inner, err := githttp.NewClientWithOptions(client, nil).NewUploadPackSession(endpoint, nil)
	if err != nil {
		return nil, err
	}
	return &httpsSession{inner, trust.closeIdle}, nil
}

// guard turns answers that are not git's into errors that say what they are,
// before go-git reads a whole error page into memory or tries to parse one.
type guard struct {
	next    http.RoundTripper
	maxRefs int64
}

func (g *guard) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := g.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode >= 300 && res.StatusCode < 400 {
		return res, nil
	}
	want := "application/x-git-upload-pack-result"
	if strings.HasSuffix(req.URL.Path, "/info/refs") {
		want = "application/x-git-upload-pack-advertisement"
		res.Body = &limitedBody{res.Body, g.maxRefs}
	}
	kind, _, _ := strings.Cut(res.Header.Get("Content-Type"), ";")
	switch {
	case res.StatusCode != http.StatusOK:
		_ = res.Body.Close()
		return nil, &statusError{code: res.StatusCode}
	case !strings.EqualFold(strings.TrimSpace(kind), want):
		_ = res.Body.Close()
		return nil, &notGitError{contentType: printable(kind, 60)}
	}
	return res, nil
}

// limitedBody fails once more than left bytes were read.
type limitedBody struct {
	io.ReadCloser
	left int64
}

func (b *limitedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, errTooManyRefs
	}
	return n, err
}
