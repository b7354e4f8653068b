package web_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tendril-run/tendril/internal/controlplane/web"
)

// Nobody signs in for /healthz: it must not matter how many ask. One who has
// gone away decides nothing for the others.
func TestHealthIsFoundOutSparingly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		routes := web.Routes{Health: web.Sparing(func(ctx context.Context) (any, bool) {
			asked++
			return asked, ctx.Err() == nil
		})}
		ask := func() *httptest.ResponseRecorder {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			w := httptest.NewRecorder()
			routes.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/healthz", nil))
			return w
		}
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				if w := ask(); w.Code != http.StatusOK || w.Body.String() != "1\n" {
					t.Errorf("GET /healthz = %d %s, want 200 and the one answer", w.Code, w.Body)
				}
			})
		}
		all.Wait()
		time.Sleep(time.Second)
		if w := ask(); w.Body.String() != "2\n" {
			t.Errorf("GET /healthz a second later = %s, want a new answer", w.Body)
		}
	})
}
