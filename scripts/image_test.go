package scripts

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The programs within the images are those of the release, byte by byte, so both
// must be linked alike.
func TestImagesHaveTheProgramsOfTheRelease(t *testing.T) {
	t.Parallel()
	flags := func(file string, meant map[string]string) string {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		build := regexp.MustCompile(`go build (-trimpath) \\\n\s+(-ldflags "[^"]+")`).FindStringSubmatch(string(content))
		if build == nil {
			t.Fatalf("%s builds nothing", file)
		}
		flags := build[1] + " " + build[2]
		for name, value := range meant {
			flags = strings.ReplaceAll(flags, name, value)
		}
		return flags
	}
	image := flags("../Dockerfile", map[string]string{"$VERSION": "$version", "$REVISION": "$commit"})
	release := flags("release.sh", map[string]string{"$linked": "github.com/tendril-run/tendril/internal/version"})
	if image != release {
		t.Errorf("Dockerfile builds with\n%s\nand release.sh with\n%s", image, release)
	}
}
