package browsertest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// artifactsEnv names the directory that screenshots are kept in. Without it, only
// those of tests that fail are.
const artifactsEnv = "TENDRIL_TEST_ARTIFACTS"

// tallest bounds a picture: a log of 200,000 lines is not worth one of all.
const tallest = 3000

// Screenshot keeps a picture of the whole page, under a name to which theme and
// width are added, where somebody has said that pictures are wanted.
func (tab *Tab) Screenshot(name string) {
	tab.t.Helper()
	if os.Getenv(artifactsEnv) == "" {
		return
	}
	path, err := tab.picture(tab.ctx, name)
	if err != nil {
		tab.t.Fatalf("take a screenshot: %v", err)
	}
	tab.t.Logf("screenshot %s", path)
}

// keepFailure keeps a picture of what a failed test saw last, if it can.
func (tab *Tab) keepFailure() {
	if path, err := tab.picture(tab.ctx, "failed-"+tab.t.Name()); err == nil {
		tab.t.Logf("screenshot %s", path)
	}
}

func (tab *Tab) picture(ctx context.Context, name string) (string, error) {
	dir, err := artifacts()
	if err != nil {
		return "", err
	}
	ctx, cancel := patience.Context(ctx, limit)
	defer cancel()
	height, err := chromedp.Run(ctx, chromedp.Evaluate[float64](`document.documentElement.scrollHeight`))
	if err != nil {
		return "", err
	}
	image, err := chromedp.Run(ctx, func(ctx context.Context, target *chromedp.Target) ([]byte, error) {
		beyond := true
		shot, err := cdp.Call(ctx, target, page.CaptureScreenshot, page.CaptureScreenshotParams{
			CaptureBeyondViewport: &beyond, OptimizeForSpeed: &beyond,
			Clip: &page.Viewport{Width: float64(tab.look.Width), Height: min(max(height, float64(tab.look.Height)), tallest), Scale: 1},
		})
		return shot.Data, err
	})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, strings.Map(plain, name)+"-"+tab.look.String()+".png")
	return path, os.WriteFile(path, image, 0o644)
}

// plain leaves in a file's name what every system takes.
func plain(r rune) rune {
	if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.' {
		return r
	}
	return '-'
}

// artifacts makes the directory: dist/screenshots of the module, which is in no
// repository.
func artifacts() (string, error) {
	dir := os.Getenv(artifactsEnv)
	if dir == "" {
		root, err := os.Getwd()
		if err != nil {
			return "", err
		}
		for !exists(filepath.Join(root, "go.mod")) {
			if root == filepath.Dir(root) {
				return "", errors.New("the tests do not run in their module: set " + artifactsEnv + " to a directory for screenshots")
			}
			root = filepath.Dir(root)
		}
		dir = filepath.Join(root, "dist", "screenshots")
	}
	return dir, os.MkdirAll(dir, 0o755)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
