package site

import (
	"compress/gzip"
	"net/http"

	"github.com/klauspost/compress/gzhttp"
)

// compressor has a handler's answers gzipped for clients that take it. It is for
// what is the same for everybody (assets, the API's document and page) and for what
// programs GET (lists, logs), and for nothing else.
//
// From the length of what is compressed one learns how much of a text of one's own
// stands beside it as well (BREACH). So nothing is that answers with what the
// request says: pages, which repeat what somebody looks for, and problems; and
// nothing that tells a secret, which answers to POST alone do.
func compressor() (func(http.Handler) http.HandlerFunc, error) {
	return gzhttp.NewWrapper(gzhttp.CompressionLevel(gzip.BestSpeed), gzhttp.EnableZstd(false), gzhttp.ContentTypes([]string{
		"application/json", "application/openapi+json", "application/openapi+yaml", "text/plain", "text/html", "text/css", "text/javascript", "image/svg+xml",
	}))
}
